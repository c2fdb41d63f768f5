"""The `engine.torch` section of a config: how the torch engine runs, not what it samples."""

from dataclasses import dataclass
from typing import Literal

from rollart.errors import ConfigError

_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchEngineOptions:
    """How one torch engine uses its device."""

    device: str = "cpu"
    """Where the model runs, by torch device name: cpu, cuda, cuda:1."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights, keys and values; bfloat16 is slow on CPUs without AVX-512."""
    rows: int = 64
    """Most sequences decoded together; further requests wait in the order they came."""
    max_length: int = 1024
    """Most tokens a sequence may hold, prompt and completions together."""
    prefill_tokens: int = 2048
    """Most prompt tokens computed in one step; longer prompts take several steps."""
    cached_sessions: int = 64
    """Idle sessions whose keys and values are kept beyond the rows; least recently used go."""
    threads: int = 0
    """Most threads inside one operation, short ones use one; 0 takes torch's own number."""

    def __post_init__(self) -> None:
        if not self.device:
            raise ConfigError(
                "engine.torch.device", self.device, "name a torch device such as 'cpu'"
            )
        if self.dtype not in _DTYPES:
            raise ConfigError("engine.torch.dtype", self.dtype, f"use one of {', '.join(_DTYPES)}")
        for name, least in (
            ("rows", 1),
            ("max_length", 2),
            ("prefill_tokens", 1),
            ("cached_sessions", 0),
            ("threads", 0),
        ):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"engine.torch.{name}", value, f"must be at least {least}")
