"""Rules: the parameters of every decision, as frozen values that a config gives.

`RuleSections` lists the rules once; `Rules` adds what a run as a whole is: its length, its seed
and its mode. Each rule checks itself, so a scheduler never meets a value out of range. The five
modes are rows of the same few decisions:

| mode      | rollout         | next groups start            | weights change    | age is bounded |
|-----------|-----------------|------------------------------|-------------------|----------------|
| sync      | lock-step       | when the new weights serve   | engines idle      | 0              |
| sync_plus | per trajectory  | when the new weights serve   | engines idle      | 0              |
| one_off   | per trajectory  | while the last batch trains  | engines idle      | 1              |
| areal     | per trajectory  | within a window              | mid-trajectory    | at the start   |
| rollart   | per trajectory  | within a window              | mid-trajectory    | at every turn  |
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from rollart.constraints import AtLeast, Between, Fixed, ZeroOrAtLeast, check_fields
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
    lookahead_groups: Annotated[
        int, AtLeast(0, "0: a batch"), Fixed("a batch, which is what must finish together")
    ] = 0
    """Groups put in order together with "longest"; 0 takes as many as a batch holds."""

    def __post_init__(self) -> None:
        check_fields(self, "dispatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncing:
    """How engines change weights."""

    order: Literal["all", "rolling"] = "all"
    """Suspend all engines together, or one after another so that the others keep serving."""
    when: Literal["published", "batch"] = "published"
    """Load new weights as soon as they are there, or (the paper's order) when a batch is taken."""
    keep_kv: bool = False
    """Let running requests keep keys and values of the old weights instead of recomputing them."""

    def __post_init__(self) -> None:
        check_fields(self, "syncing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Attempts, rests and the point of giving up."""

    max_attempts: Annotated[int, AtLeast(1)] = 3
    """Attempts at one member before its group continues without it."""
    backoff_s: Annotated[float, AtLeast(0)] = 0.5
    """Rest of a slot after its first failure in a row; doubled by each further one."""
    backoff_max_s: float = 60.0
    """Longest rest of a slot."""
    jitter: Annotated[float, Between(0, 1), Fixed("enough to part slots that failed at once")] = 0.2
    """Rests vary by this fraction, so that slots do not return together."""
    spares: bool = True
    """While a slot rests, let a spare stand in for it, so that as many episodes run as before."""
    give_up_after: Annotated[int, AtLeast(1)] = 64
    """Failures in a row, over all slots and with no attempt finished between, that end the run;
    so many failed scores with none between that succeeded end it too."""

    def __post_init__(self) -> None:
        check_fields(self, "retry")
        if self.backoff_max_s < self.backoff_s:
            fix = f"must be at least retry.backoff_s ({self.backoff_s})"
            raise ConfigError("retry.backoff_max_s", self.backoff_max_s, fix)

    def rest_s(self, failures: int, *, draw: float) -> float:
        """Return how long a slot rests after `failures` in a row; `draw` is uniform in [0, 1)."""
        rest = min(self.backoff_max_s, self.backoff_s * 2.0 ** min(failures - 1, 60))
        return rest * (1 + self.jitter * (2 * draw - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Sizes of groups and batches, and the order in which complete groups are taken."""

    groups_per_step: Annotated[int, AtLeast(1)] = 8
    """Groups the trainer consumes in one optimizer step."""
    group_size: Annotated[int, AtLeast(1)] = 8
    """Attempts at one task whose rewards are compared."""
    min_members: Annotated[int, AtLeast(1)] = 2
    """Fewest scored attempts a group may train with, when others failed for good."""
    order: Literal["oldest", "finished"] = "oldest"
    """Take the groups born of the oldest weights first, or in the order they finished."""

    def __post_init__(self) -> None:
        check_fields(self, "batching")

    def key(self, *, born: Version, finished: int) -> tuple[int, int]:
        """Return a group's place in the queue; `finished` counts groups in completion order."""
        return (born, finished) if self.order == "oldest" else (finished, born)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundancy:
    """How much more is started than will be trained."""

    extra_groups: Annotated[int, AtLeast(0)] = 0
    """Groups in flight beyond what the staleness bound counts; they stand in for lost ones."""
    extra_members: Annotated[int, AtLeast(0)] = 0
    """Attempts started beyond the group's size; they stand in for those whose environment fails."""
    choice: Literal["launched", "finished"] = "launched"
    """Which of the attempts started in surplus are trained: the first launched that did not fail,
    or (the paper's) the first finished, which prefers short episodes."""
    adaptive: bool = False
    """Move extra_groups between steps by the tails and the waste observed, starting from it."""
    max_extra_groups: Annotated[
        int, AtLeast(0), Fixed("half of batching.groups_per_step, or extra_groups if that is more")
    ] = 0
    """With adaptive: most extra_groups may become; 0 is half of batching.groups_per_step."""
    hedge_after: Annotated[float, ZeroOrAtLeast(1)] = 0.0
    """Double an attempt that runs this many times as long as usual; 0 never does. Both play the
    same draws, and the first to finish is trained."""

    def __post_init__(self) -> None:
        check_fields(self, "redundancy")
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
    refill_limit: Annotated[int, AtLeast(0)] = 64
    """Groups dropped since the last step after which groups are kept whatever their rewards."""

    def __post_init__(self) -> None:
        check_fields(self, "filter")

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
        return replace(configured, alpha=self.alpha, max_age=self.alpha, window="served")


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
class RuleSections:
    """The sections of a config that a scheduler decides by: a new rule is one line here.

    `Config` and `Rules` inherit the fields; logs and what-ifs find them by reflection.

    Example:
        >>> RuleSections(staleness=Staleness(alpha=2)).sections["staleness"].alpha
        2

    """

    batching: Batching = field(default_factory=Batching)
    """Sizes of groups and batches."""
    staleness: Staleness = field(default_factory=Staleness)
    """How old trained work may be."""
    redundancy: Redundancy = field(default_factory=Redundancy)
    """How much more is started than will be trained."""
    retry: Retry = field(default_factory=Retry)
    """What follows an infrastructure failure."""
    filter: Filter = field(default_factory=Filter)
    """Which complete groups teach something."""
    syncing: Syncing = field(default_factory=Syncing)
    """How engines change weights."""
    dispatch: Dispatch = field(default_factory=Dispatch)
    """Which task is opened next."""
    lending: Lending = field(default_factory=Lending)
    """When idle training hardware serves rollout."""

    @property
    def sections(self) -> dict[str, Any]:
        """The rules by their sections' names."""
        return {each.name: getattr(self, each.name) for each in fields(RuleSections)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules(RuleSections):
    """Everything a scheduler decides by.

    Example:
        >>> Rules(steps=100, mode=AREAL, batching=Batching(groups_per_step=4))

    """

    steps: int
    """Optimizer steps of the whole run."""
    seed: int = 0
    """Seeds the scheduler's draws."""
    mode: Mode = ROLLART
    """The schedule."""
