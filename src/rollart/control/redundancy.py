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
    adaptive: bool = False
    """Move extra_groups between steps by the tails and the waste observed, starting from it."""
    max_extra_groups: int = 0
    """With adaptive: most extra_groups may become; 0 is half of batching.groups_per_step."""
    hedge_after: float = 0.0
    """Start a rival of an attempt that runs this many times as long as usual; 0 never does."""

    def __post_init__(self) -> None:
        if self.hedge_after != 0 and self.hedge_after < 1:
            raise ConfigError("redundancy.hedge_after", self.hedge_after, "must be 0 or at least 1")
        if self.extra_groups < 0:
            raise ConfigError("redundancy.extra_groups", self.extra_groups, "must be at least 0")
        if self.extra_members < 0:
            raise ConfigError("redundancy.extra_members", self.extra_members, "must be at least 0")

        if self.max_extra_groups < 0:
            fix = "must be at least 0"
            raise ConfigError("redundancy.max_extra_groups", self.max_extra_groups, fix)
        if self.adaptive and 0 < self.max_extra_groups < self.extra_groups:
            fix = f"must be at least redundancy.extra_groups ({self.extra_groups}), or 0"
            raise ConfigError("redundancy.max_extra_groups", self.max_extra_groups, fix)

    def most_extra_groups(self, groups_per_step: int) -> int:
        """Return what extra_groups may become."""
        return self.max_extra_groups or max(self.extra_groups, (groups_per_step + 1) // 2)

    def members(self, group_size: int) -> int:
        """Return how many attempts a group starts with."""
        return group_size + self.extra_members
