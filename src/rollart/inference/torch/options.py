"""The `engine.torch` section of a config: how the torch engine runs, not what it samples.

Apart from the engine so that a config is read and checked without loading torch.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from rollart.constraints import AtLeast, Fixed, NonEmpty, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchEngineOptions:
    """How one torch engine uses its device.

    Example:
        >>> TorchEngineOptions(device="cuda", dtype="bfloat16", rows=128, max_length=8192)

    """

    device: Annotated[str, NonEmpty("name a torch device such as 'cpu'")] = "cpu"
    """Where the model runs, by torch device name: cpu, cuda, cuda:1."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights, keys and values; bfloat16 is slow on CPUs without AVX-512."""
    rows: Annotated[int, AtLeast(1)] = 64
    """Most sequences decoded together; further requests wait in the order they came."""
    max_length: Annotated[int, AtLeast(2)] = 1024
    """Most tokens a sequence may hold, prompt and completions together."""
    prefill_tokens: Annotated[
        int, AtLeast(1), Fixed("large enough to use the device, short beside a turn")
    ] = 2048
    """Most prompt tokens computed in one step; longer prompts take several steps."""
    cached_sessions: Annotated[int, AtLeast(0)] = 64
    """Idle sessions whose keys and values are kept beyond the rows; least recently used go."""
    threads: Annotated[int, AtLeast(0)] = 0
    """Most threads inside one operation, short ones use one; 0 takes torch's own number."""

    def __post_init__(self) -> None:
        check_fields(self, "engine.torch")
