"""Options of the model: which one, how a tiny one is warm-started, and that it writes tokens."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from rollart.constraints import AtLeast, Between, NonEmpty, check_fields
from rollart.errors import ConfigError
from rollart.plugins import LANGUAGE_RUNTIME

TINY = "tiny:"
SIZES = ("0.2M", "0.3M", "1M", "5M", "20M")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The model being trained.

    Example:
        >>> ModelOptions(path="Qwen/Qwen3-0.6B").tiny_size is None
        True

    """

    path: Annotated[str, NonEmpty("must name a model, for example tiny:0.3M")] = "tiny:0.3M"
    """A local Hugging Face directory, a hub name, or tiny:0.2M, :0.3M, :1M, :5M, :20M."""
    shape: str = ""
    """The shape the planner reckons with, such as "Qwen3-8B"; empty: the last part of the path."""
    seed: int = 0
    """Seeds the weights of a tiny model and its warm start."""
    warm_start: bool = True
    """Whether a tiny model first learns from a noisy scripted player.

    Without it random games are still played once, for its tokenizer."""
    warm_start_episodes: Annotated[int, AtLeast(1)] = 16_000
    """How many plays the warm start learns from."""
    warm_start_epochs: Annotated[int, AtLeast(1)] = 1
    """How often the warm start sees each play."""
    warm_start_batch_tokens: Annotated[int, AtLeast(1)] = 1024
    """About how many tokens one optimizer step of the warm start takes."""
    warm_start_noise: Annotated[float, Between(0, 1)] = 0.5
    """Share of the scripted player's moves that are random: 1 shows only the format."""
    cache: str = ""
    """Where built models are kept; empty: $ROLLART_CACHE, or rollart in the user's cache."""

    def __post_init__(self) -> None:
        check_fields(self, "model")
        if self.tiny_size is not None and self.tiny_size not in SIZES:
            raise ConfigError("model.path", self.path, f"size must be one of {', '.join(SIZES)}")

    @property
    def tiny_size(self) -> str | None:
        """The size named by `tiny:…`, None for any other model."""
        return self.path.removeprefix(TINY) if self.path.startswith(TINY) else None

    @property
    def needs_suggestions(self) -> bool:
        """Whether the model is warm-started from moves that environments suggest."""
        return self.tiny_size is not None and self.warm_start and self.warm_start_noise < 1.0

    @property
    def cache_directory(self) -> Path:
        """The directory of built models."""
        named = self.cache or os.environ.get("ROLLART_CACHE", "")
        users = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return (Path(named) if named else Path(users) / "rollart").expanduser()


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePolicy:
    """A language model, which reads and writes tokens: the policy called "language".

    Example:
        >>> LanguagePolicy()  # [model] says which one

    """

    runtime: ClassVar[str] = LANGUAGE_RUNTIME
