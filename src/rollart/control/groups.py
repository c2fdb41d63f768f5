"""Groups and attempts: the scheduler's own record of what runs.

A member is one place in a group; an attempt is one try at filling it. A member is queued, in
flight (running, or finished and not yet scored), scored, or lost (out of tries, in none of them).
"""

from dataclasses import dataclass, field
from typing import Literal

from rollart.events import CancelReason
from rollart.types import GroupId, SlotId, TrajectoryId, Version


@dataclass(slots=True, kw_only=True)
class Group:
    """The attempts at one task."""

    id: GroupId
    task: int = 0
    """The index of its task in the stream."""
    domain: str = ""
    state: Literal["rolling", "ready", "training", "trained"] = "rolling"
    born: Version | None = None
    """The oldest version that sampled a first token in it."""
    queued: dict[int, int] = field(default_factory=dict[int, int])
    """Members waiting for a slot, with the number of their next attempt."""
    flying: dict[int, "Attempt"] = field(default_factory=dict[int, "Attempt"])
    """Attempts in flight by member."""
    scored: dict[int, tuple[TrajectoryId, float]] = field(
        default_factory=dict[int, tuple[TrajectoryId, float]]
    )
    """Finished attempts by member, with their rewards."""
    members: int = 0
    """Places it has had, hedges included."""
    produced: Version | None = None
    """The version its training produced; it stays outstanding until that is served."""

    @property
    def trajectories(self) -> tuple[TrajectoryId, ...]:
        """The scored attempts, in member order."""
        return tuple(self.scored[member][0] for member in sorted(self.scored))

    @property
    def unscored(self) -> dict[int, int]:
        """Members queued or in flight, with the number of the attempt each needs."""
        return self.queued | {member: each.number for member, each in self.flying.items()}

    def due_s(self, size: int, *, late_s: float, now: float) -> float:
        """Return until when enough of its members are on time to make it complete.

        One that runs is on time until `late_s` after its launch, one that is queued or being
        scored until `late_s` from now.
        """
        flying = self.flying.values()
        began_s = [each.launched_s if each.state == "running" else now for each in flying]
        began_s += [now] * len(self.queued)
        needed = max(1, min(size - len(self.scored), len(began_s)))
        return sorted(began_s)[-needed] + late_s

    @property
    def rewards(self) -> list[float]:
        """The rewards of the scored attempts."""
        return [reward for _, reward in self.scored.values()]


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One try at one member of a group."""

    id: TrajectoryId
    group: Group
    member: int
    number: int
    slot: SlotId
    launched_s: float = 0.0
    state: Literal["running", "cancelling", "rival", "finished", "scoring", "discarded"] = "running"
    """`rival`: waits for the rest of its group, to be compared with it; `discarded`: dropped while
    a reward function was at work on it."""
    is_compared: bool = False
    """Whether its reward comes of comparing it with the rest of its group."""
    ending: CancelReason = "surplus"
    """Why it is being cancelled, when it is."""

    @property
    def is_wanted(self) -> bool:
        """Whether its group still counts on it."""
        return self.state not in ("cancelling", "discarded")
