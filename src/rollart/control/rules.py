"""Rules: every decision's parameters in one value, as the config gives them.

Modes: the five schedules, each a row of the same few decisions.

| mode      | rollout         | next groups start            | weights change    | age is bounded |
|-----------|-----------------|------------------------------|-------------------|----------------|
| sync      | lock-step       | when the new weights serve   | engines idle      | 0              |
| sync_plus | per trajectory  | when the new weights serve   | engines idle      | 0              |
| one_off   | per trajectory  | while the last batch trains  | engines idle      | 1              |
| areal     | per trajectory  | within a window              | mid-trajectory    | at the start   |
| rollart   | per trajectory  | within a window              | mid-trajectory    | at every turn  |
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rollart.control.lending import Lending
from rollart.control.staleness import Staleness
from rollart.errors import ConfigError
from rollart.types import Version


def one_domain(_index: int) -> str:
    """Put every task in the same domain."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Which task is opened next."""

    order: Literal["arrival", "longest"] = "arrival"
    """Open tasks as they come, or those expected to take longest first."""
    lookahead_groups: int = 0
    """Groups put in order together with "longest"; 0 takes as many as a batch holds."""

    def __post_init__(self) -> None:
        if self.lookahead_groups < 0:
            fix = "must be at least 0 (0: a batch)"
            raise ConfigError("dispatch.lookahead_groups", self.lookahead_groups, fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncing:
    """How engines change weights."""

    order: Literal["all", "rolling"] = "all"
    """Suspend all engines together, or one after another so that the others go on serving."""
    when: Literal["published", "batch"] = "published"
    """Load new weights as soon as they are there, or (the paper's order) when a batch is taken."""
    keep_kv: bool = False
    """Keep cached keys and values of the old weights instead of recomputing them."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Sizes of groups and batches, and the order in which complete groups are taken."""

    groups_per_step: int = 8
    """Groups the trainer consumes in one optimizer step."""
    group_size: int = 8
    """Attempts at one task whose rewards are compared."""
    min_members: int = 2
    """Fewest scored attempts a group may train with, when others failed for good."""
    order: Literal["oldest", "finished"] = "oldest"
    """Take the groups born of the oldest weights first, or in the order they finished."""

    def __post_init__(self) -> None:
        if self.groups_per_step < 1:
            raise ConfigError("batching.groups_per_step", self.groups_per_step, "must be >= 1")
        if self.group_size < 1:
            raise ConfigError("batching.group_size", self.group_size, "must be at least 1")
        if self.min_members < 1:
            raise ConfigError("batching.min_members", self.min_members, "must be at least 1")

    def key(self, *, born: Version, finished: int) -> tuple[int, int]:
        """Return a group's place in the queue; `finished` counts groups in completion order."""
        return (born, finished) if self.order == "oldest" else (finished, born)


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


ModeName = Literal["sync", "sync_plus", "one_off", "areal", "rollart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One schedule."""

    name: ModeName
    admission: Literal["iteration", "window"]
    """Start groups batch by batch, or whenever the window of outstanding groups has room."""
    lockstep: bool
    """Every running environment takes its turn together."""
    score: Literal["after_rollout", "at_once"]
    """Run reward functions when the whole batch has rolled out, or as each trajectory ends."""
    update: Literal["idle", "at_once"]
    """Change engine weights only when nothing runs, or as soon as they are published."""
    bound: Literal["start", "always"]
    """Where the staleness bound is held: only at the door, or until the trainer takes the work."""
    affinity: bool
    """Route by task domain to the pool that fits it."""
    alpha: int | None
    """The staleness bound the schedule implies; None takes the config's."""

    def staleness(self, configured: Staleness) -> Staleness:
        """Return the staleness rule this mode runs with."""
        if self.alpha is None:
            return configured
        return replace(configured, alpha=self.alpha, window="served")


SYNC = Mode(
    name="sync",
    admission="iteration",
    lockstep=True,
    score="after_rollout",
    update="idle",
    bound="always",
    affinity=False,
    alpha=0,
)
SYNC_PLUS = replace(SYNC, name="sync_plus", lockstep=False, score="at_once")
ONE_OFF = replace(SYNC_PLUS, name="one_off", alpha=1)
AREAL = replace(
    ONE_OFF, name="areal", admission="window", update="at_once", bound="start", alpha=None
)
ROLLART = replace(AREAL, name="rollart", bound="always", affinity=True)

MODES: dict[str, Mode] = {mode.name: mode for mode in (SYNC, SYNC_PLUS, ONE_OFF, AREAL, ROLLART)}


def mode_named(name: str) -> Mode:
    """Return a mode by its name."""
    if name not in MODES:
        raise ConfigError("run.mode", name, f"must be one of {', '.join(MODES)}")
    return MODES[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Everything a scheduler decides by."""

    steps: int
    """Optimizer steps of the whole run."""
    seed: int = 0
    mode: Mode = ROLLART
    batching: Batching = field(default_factory=Batching)
    staleness: Staleness = field(default_factory=Staleness)
    redundancy: Redundancy = field(default_factory=Redundancy)
    retry: Retry = field(default_factory=Retry)
    filter: Filter = field(default_factory=Filter)
    syncing: Syncing = field(default_factory=Syncing)
    dispatch: Dispatch = field(default_factory=Dispatch)
    lending: Lending = field(default_factory=Lending)
