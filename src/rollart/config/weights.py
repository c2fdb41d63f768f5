"""The options of weights on their way from the trainer to the engines."""

from dataclasses import dataclass
from typing import Literal

from rollart.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOptions:
    """How weights travel from the trainer to the engines."""

    store: Literal["shared_memory", "memory", "files", "relay", "mooncake", "ray"] = "shared_memory"
    """Where versions are kept; "memory" puts the trainer into this process, for debugging."""
    place: str = ""
    """For "files" a path or an fsspec URL, for "relay" and "mooncake" the server's host:port."""
    keep: int = 0
    """Newest versions kept; 0: as many as an engine may still be loading: staleness.alpha + 2, and
    one for each whole batch of redundancy.extra_groups."""
    bucket_bytes: int = 64 * 2**20
    """Size of the pieces a version travels in; those of "shared_memory" are not cut."""
    delta: bool = False
    """Send only what changed since the version before, where versions travel in buckets."""
    wait_s: float = 120.0
    """Seconds an engine waits for a version that was published, or for a store that does not
    answer, before it is given up; the last engine's failure ends the run."""

    def __post_init__(self) -> None:
        if self.keep < 0:
            fix = "must be at least 0 (0: as many as are needed)"
            raise ConfigError("weights.keep", self.keep, fix)
        if self.bucket_bytes < 64 or self.bucket_bytes % 64:
            raise ConfigError("weights.bucket_bytes", self.bucket_bytes, "must be a multiple of 64")
        if self.wait_s <= 0:
            raise ConfigError("weights.wait_s", self.wait_s, "must be more than 0")
        in_buckets = self.store not in ("shared_memory", "memory")
        if in_buckets and self.store != "ray" and not self.place:
            fix = f'weights.store = "{self.store}" needs a path, a URL or host:port'
            raise ConfigError("weights.place", self.place, fix)
        if not in_buckets and (self.place or self.delta):
            name = "place" if self.place else "delta"
            fix = f'weights.store = "{self.store}" does not use it: leave it out'
            raise ConfigError(f"weights.{name}", getattr(self, name), fix)
