"""The `engine.torch` section of a config: how the torch engine runs, not what it samples."""

from dataclasses import dataclass
from typing import Literal

import torch

from rollart.errors import ConfigError

_LAYER_PRODUCTS = 1 << 26
"""Multiplications of a layer's linear maps from which threads share them: two milliseconds."""


_ATTENDED_NUMBERS = 1 << 19
"""Keys a token of each row attends to from which threads share the rows: half a millisecond."""


_TOKENS_A_READ = 8
"""Tokens of a row that attend in the time in which its keys and values are read."""


class Threads:
    """Chooses how many threads of this process the next operations use."""

    def __init__(self, count: int) -> None:
        self._count = count

    def share_all(self) -> None:
        """Leave all threads to what follows."""
        self._use(shared=True)

    def share_linear(self, *, tokens: int, layer_size: int) -> None:
        """Choose for the linear maps of a layer of so many weights."""
        self._use(shared=tokens * layer_size >= _LAYER_PRODUCTS)

    def share_attention(self, *, rows: int, row_size: int, tokens: int) -> None:
        """Choose for rows of keys of such a size, each with as many tokens."""
        reads = rows * row_size * (1 + tokens // _TOKENS_A_READ)
        self._use(shared=reads >= _ATTENDED_NUMBERS)

    def _use(self, *, shared: bool) -> None:
        if self._count > 1:
            torch.set_num_threads(self._count if shared else 1)


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
