"""Redundancy: starting more than a batch needs, so that slow and dead attempts are not awaited."""

from dataclasses import dataclass

from rollart.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundancy:
    """How much more is started than will be trained."""

    extra_groups: int = 0
    """Groups in flight beyond what the staleness bound counts; the first to finish are taken."""
    extra_members: int = 0
    """Attempts started beyond the group's size; when enough are scored, the rest are cancelled."""

    hedge_after: float = 0.0
    """Start a rival of an attempt that runs this many times as long as usual; 0 never does."""

    def __post_init__(self) -> None:
        if self.hedge_after != 0 and self.hedge_after < 1:
            raise ConfigError("redundancy.hedge_after", self.hedge_after, "must be 0 or at least 1")
        if self.extra_groups < 0:
            raise ConfigError("redundancy.extra_groups", self.extra_groups, "must be at least 0")
        if self.extra_members < 0:
            raise ConfigError("redundancy.extra_members", self.extra_members, "must be at least 0")

    def members(self, group_size: int) -> int:
        """Return how many attempts a group starts with."""
        return group_size + self.extra_members
