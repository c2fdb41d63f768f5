"""What happened (Event) and what to do (Command): the whole vocabulary of the scheduler.

Events enter `Scheduler.handle`, commands leave it; both are written to the run's log, and a log
replayed through the scheduler must give the same commands. Neither carries what a policy read
or did, only its cost (`TrajectoryInfo.cost`).

Every `Launch` is answered by exactly one of `TrajectoryFinished`, `TrajectoryFailed` or
`TrajectoryCancelled`; every `Score` by one `TrajectoryScored` or `ScoreFailed` per trajectory;
every `Train` by `StepFinished`; `Publish` by `Published`; `Suspend` by `EngineSuspended`;
`Update` by `EngineUpdated`; `Lend` by `EngineLent`; `Recall` by `EngineRecalled`; `Wake` by `Woke`.
An engine that is lost answers nothing more, nor does a `Score` of what was dropped when a run ends.
`TurnCut` follows the end of an attempt whose turn was under way, as soon as the engine knows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rollart.types import (
    EngineId,
    EngineInfo,
    Failure,
    GroupId,
    SlotId,
    TrajectoryId,
    TrajectoryInfo,
    Version,
)

CancelReason = Literal["stale", "surplus", "group_dropped", "run_finished", "interrupted"]
"""Why a running attempt is stopped."""
DropReason = Literal[
    "stale",
    "surplus",
    "group_dropped",
    "zero_variance",
    "too_few_members",
    "score_failed",
    "run_finished",
    "interrupted",
]
"""Why a finished attempt is not trained on."""


# --- events ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The engines serve and the environment slots are ready.

    Example: RunStarted(engines=(EngineInfo(id="engine-0", pool="local", version=0),), slots=64)

    """

    engines: tuple[EngineInfo, ...]
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryBorn:
    """The policy acted for the first time in an attempt, with these weights.

    Example: TrajectoryBorn(id=17, version=3)

    """

    id: TrajectoryId
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFinished:
    """An episode reached its end and its record lies in the buffer.

    Example: TrajectoryFinished(info=TrajectoryInfo(id=17, born=3, reward=1.0, success=True, …))

    """

    info: TrajectoryInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFailed:
    """Infrastructure failed under an attempt; there is no record.

    Example: TrajectoryFailed(id=17, failure=Failure(kind="env_timeout", message="…"), cost=12)

    """

    id: TrajectoryId
    failure: Failure
    cost: int
    turns: int = 0
    """How many times the policy had acted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryCancelled:
    """A `Cancel` took effect before the attempt ended by itself.

    Example: TrajectoryCancelled(id=17, cost=12, turns=3)

    """

    id: TrajectoryId
    cost: int
    turns: int = 0
    """How many times the policy had acted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCut:
    """A turn of an attempt that was cancelled or failed ended in the engine, unfinished.

    Example: TurnCut(id=17, cost=5)

    """

    id: TrajectoryId
    cost: int
    """What it had produced; not part of the cost the attempt's end reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryScored:
    """A reward function scored a finished trajectory.

    Example: TrajectoryScored(id=17, reward=0.75, parts={"tests": 0.5, "format": 0.25})

    """

    id: TrajectoryId
    reward: float
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the reward is made of, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFailed:
    """A reward function could not score a finished trajectory.

    Example: ScoreFailed(id=17, message="unit_tests took more than 60 s")

    """

    id: TrajectoryId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """The optimizer stepped; its weights are now `version`.

    Example: StepFinished(version=4, metrics={"loss": 0.021, "entropy": 0.63})

    """

    version: Version
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The weight store holds `version` whole.

    Example: Published(version=4, metrics={"push_s": 0.08})

    """

    version: Version
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """What it took: `push_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJoined:
    """An engine that was not there when the run started could serve from now on.

    Example: EngineJoined(engine=EngineInfo(id="engine-2", pool="H20", version=4))

    """

    engine: EngineInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLost:
    """An engine was lost and answers nothing more; its turns continue at another engine.

    Example: EngineLost(engine="engine-2", message="its process was killed")

    """

    engine: EngineId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSuspended:
    """An engine takes no step until it is resumed; what it was doing is kept.

    Example: EngineSuspended(engine="engine-0")

    """

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpdated:
    """A suspended engine holds the weights of `version`.

    Example: EngineUpdated(engine="engine-0", version=4, metrics={"pull_s": 0.2, "load_s": 0.05})

    """

    engine: EngineId
    version: Version
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """What it took: `pull_s` in all, of it `exposed_s` while the engine stood, and `load_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLent:
    """An engine on training hardware holds the weights of `version` and takes requests.

    Example: EngineLent(engine="engine-lent", version=4)

    """

    engine: EngineId
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecalled:
    """A lent engine takes no requests and runs none; its hardware is the trainer's.

    Example: EngineRecalled(engine="engine-lent")

    """

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Woke:
    """The time asked for by a `Wake` has come.

    Example: Woke(at_s=12.5)

    """

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The user wants the run to end now, with a checkpoint.

    Example: StopRequested()

    """


Event = (
    RunStarted
    | TrajectoryBorn
    | TrajectoryFinished
    | TrajectoryFailed
    | TrajectoryCancelled
    | TurnCut
    | TrajectoryScored
    | ScoreFailed
    | StepFinished
    | Published
    | EngineJoined
    | EngineLost
    | EngineSuspended
    | EngineUpdated
    | EngineLent
    | EngineRecalled
    | Woke
    | StopRequested
)


# --- commands -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start one attempt at a task in an environment slot.

    Example: Launch(id=17, group=2, member=1, attempt=0, task=2, slot=5, seed=1234)

    """

    id: TrajectoryId
    group: GroupId
    member: int
    attempt: int
    """0 for the first try of this member, one more after each infrastructure failure."""
    task: int
    """Index into the task stream; members of a group share it."""
    slot: SlotId
    seed: int
    """Seeds this attempt's sampling: the same for every attempt at a member."""
    doubles: int | None = None
    """The member whose late attempt this one doubles, with the same seed; None for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop a running attempt.

    Example: Cancel(id=17, reason="stale")

    """

    id: TrajectoryId
    reason: CancelReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Run the reward functions on finished trajectories.

    Example: Score(ids=(17, 18), together=False)

    """

    ids: tuple[TrajectoryId, ...]
    together: bool = False
    """Whether they are all attempts at one task, to be compared with each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Remove finished trajectories from the buffer untrained.

    Example: Drop(ids=(17,), reason="zero_variance")

    """

    ids: tuple[TrajectoryId, ...]
    reason: DropReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Take these groups from the buffer and make one optimizer step from `version`.

    Example: Train(version=3, groups=((16, 17), (20, 21)), staleness=1)

    """

    version: Version
    groups: tuple[tuple[TrajectoryId, ...], ...]
    staleness: int
    """The largest `version − born` in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Put the trainer's weights into the weight store.

    Example: Publish(version=4)

    """

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspend:
    """Let an engine finish its step and take no further one.

    Example: Suspend(engine="engine-0")

    """

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Load published weights into a suspended engine.

    Example: Update(engine="engine-0", version=4)

    """

    engine: EngineId
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Let an engine continue.

    Example: Resume(engine="engine-0")

    """

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Open an engine that joined to requests.

    Example: Admit(engine="engine-2")

    """

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """Load published weights into an engine on idle training hardware and open it to requests.

    Example: Lend(engine="engine-lent", version=4)

    """

    engine: EngineId
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Close a lent engine to requests; other engines continue those it has.

    Example: Recall(engine="engine-lent")

    """

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapt:
    """Know what admission goes by from now on; there is nothing to do.

    Example: Adapt(alpha=2, extra_groups=1)

    """

    alpha: int
    """The window it opens groups by; what may train is bounded by the configured one."""
    extra_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Post `Woke` at this time.

    Example: Wake(at_s=12.5)

    """

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """End the run with an error: continuing would only fail again.

    Example: Halt(message="64 attempts in a row failed; the last: …")

    """

    message: str


Command = (
    Launch
    | Cancel
    | Score
    | Drop
    | Train
    | Publish
    | Suspend
    | Update
    | Resume
    | Admit
    | Lend
    | Recall
    | Adapt
    | Wake
    | Halt
)
