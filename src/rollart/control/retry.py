"""Retry: what follows an infrastructure failure.

The attempt is made again elsewhere; the slot it failed in rests, twice as long after each failure
in a row, and a spare slot stands in for it. When nothing but failures arrive, the fault is not in
one environment, and the run ends with the last reason instead of failing for ever.
"""

from dataclasses import dataclass

from rollart.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Attempts, rests and the point of giving up."""

    max_attempts: int = 3
    """Attempts at one member before its group goes on without it."""
    backoff_s: float = 0.5
    """Rest of a slot after its first failure in a row; doubled by each further one."""
    backoff_max_s: float = 60.0
    """Longest rest of a slot."""
    jitter: float = 0.2
    """Rests vary by this fraction, so that slots do not return together."""
    spares: bool = True
    """While a slot rests, let a spare stand in for it, so that as many episodes run as before."""
    give_up_after: int = 64
    """Failures in a row, over all slots and with no attempt finished between, that end the run;
    so many failed scores with none between that succeeded end it too."""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError("retry.max_attempts", self.max_attempts, "must be at least 1")
        if self.backoff_s < 0:
            raise ConfigError("retry.backoff_s", self.backoff_s, "must be at least 0")
        if self.backoff_max_s < self.backoff_s:
            fix = f"must be at least retry.backoff_s ({self.backoff_s})"
            raise ConfigError("retry.backoff_max_s", self.backoff_max_s, fix)
        if not 0 <= self.jitter <= 1:
            raise ConfigError("retry.jitter", self.jitter, "must lie between 0 and 1")
        if self.give_up_after < 1:
            raise ConfigError("retry.give_up_after", self.give_up_after, "must be at least 1")

    def rest_s(self, failures: int, *, draw: float) -> float:
        """Return how long a slot rests after `failures` in a row; `draw` is uniform in [0, 1)."""
        rest = min(self.backoff_max_s, self.backoff_s * 2.0 ** min(failures - 1, 60))
        return rest * (1 + self.jitter * (2 * draw - 1))
