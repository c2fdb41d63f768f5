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
    """The engines serve and the environment slots are ready."""

    engines: tuple[EngineInfo, ...]
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryBorn:
    """The policy acted for the first time in an attempt, with these weights."""

    id: TrajectoryId
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFinished:
    """An episode reached its end and its record lies in the buffer."""

    info: TrajectoryInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFailed:
    """Infrastructure failed under an attempt; there is no record."""

    id: TrajectoryId
    failure: Failure
    cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryCancelled:
    """A `Cancel` took effect before the attempt ended by itself."""

    id: TrajectoryId
    cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCut:
    """A turn of an attempt that was cancelled or failed ended in the engine, unfinished."""

    id: TrajectoryId
    cost: int
    """What it had produced; not part of the cost the attempt's end reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryScored:
    """A reward function scored a finished trajectory."""

    id: TrajectoryId
    reward: float
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the reward is made of, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFailed:
    """A reward function could not score a finished trajectory."""

    id: TrajectoryId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """The optimizer stepped; its weights are now `version`."""

    version: Version
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The weight store holds `version` whole."""

    version: Version
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """What it took: `push_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJoined:
    """An engine that was not there when the run started could serve from now on."""

    engine: EngineInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLost:
    """An engine is gone, and no answer of its is to come; its turns go on elsewhere."""

    engine: EngineId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSuspended:
    """An engine takes no step until it is resumed; what it was doing is kept."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpdated:
    """A suspended engine holds the weights of `version`."""

    engine: EngineId
    version: Version
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """What it took: `pull_s` in all, of it `exposed_s` while the engine stood, and `load_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLent:
    """An engine on training hardware holds the weights of `version` and takes requests."""

    engine: EngineId
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecalled:
    """A lent engine takes no requests and runs none; its hardware is the trainer's."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Woke:
    """The time asked for by a `Wake` has come."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The user wants the run to end now, in order."""


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
    """Start one attempt at a task in an environment slot."""

    id: TrajectoryId
    group: GroupId
    member: int
    attempt: int
    """0 for the first try of this member, one more after each infrastructure failure."""
    task: int
    """Index into the task stream; members of a group share it."""
    slot: SlotId
    seed: int
    """Seeds this attempt's sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop a running attempt."""

    id: TrajectoryId
    reason: CancelReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Run the reward functions on finished trajectories."""

    ids: tuple[TrajectoryId, ...]
    together: bool = False
    """Whether they are all attempts at one task, to be compared with each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Remove finished trajectories from the buffer untrained."""

    ids: tuple[TrajectoryId, ...]
    reason: DropReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Take these groups from the buffer and make one optimizer step from `version`."""

    version: Version
    groups: tuple[tuple[TrajectoryId, ...], ...]
    staleness: int
    """The largest `version − born` in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Put the trainer's weights into the weight store."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspend:
    """Let an engine finish its step and take no further one."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Load published weights into a suspended engine."""

    engine: EngineId
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Let an engine go on."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Open an engine that joined to requests."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """Load published weights into an engine on idle training hardware and open it to requests."""

    engine: EngineId
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Close a lent engine to requests; those it has go on elsewhere with what they have."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapt:
    """Know what admission goes by from now on; there is nothing to do."""

    alpha: int
    """The window it opens groups by; what may train is bounded by the configured one."""
    extra_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Post `Woke` at this time."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """End the run with an error: going on would only fail again."""

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
