"""Filters: which complete groups teach something.

A group whose rewards are all equal has zero advantage everywhere: training on it costs a pass and
changes nothing. Dropped groups are replaced, but only so many in a row: a policy that always
succeeds would otherwise never finish a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollart.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Drops groups that cannot change the policy."""

    drop_zero_variance: bool = False
    """Drop groups whose rewards are all equal, and start others instead."""
    refill_limit: int = 64
    """Groups dropped since the last step after which groups are kept whatever their rewards."""

    def __post_init__(self) -> None:
        if self.refill_limit < 0:
            raise ConfigError("filter.refill_limit", self.refill_limit, "must be at least 0")

    def keeps(self, rewards: Sequence[float], *, dropped: int) -> bool:
        """Say whether a group is worth training on, `dropped` having been refused since a step."""
        if not self.drop_zero_variance or dropped >= self.refill_limit:
            return True
        return max(rewards) - min(rewards) > 1e-9
