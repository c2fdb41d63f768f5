"""Adaptive levels: how many extra groups are started, and how far ahead, by their cost and benefit.

Before each step the time since the step before is judged by six shares: the time the trainer
waited, the parts of it due to the batch's slow groups (the tail) and to work about to become too
old (held), the time environments stood idle, and the cost thrown away because their group
became stale or surplus. Running means of them count, from when work can have become stale at all.

- `extra_groups` buys time with cost. Where groups take unlike times (there is a tail, or waste
  even when least was wasted), more are called for while the trainer waits and the waste they add is
  small beside that; fewer when they add too much, or nobody waits. In a window extra groups are
  kept for the next batch, so there environments that idle while the trainer waits call for more
  as well; where all are busy, more groups would only queue.
- `alpha`, the window groups are opened by, buys a trainer that never waits for a batch with older
  work: work that becomes too old, or is waited for so that it does not, calls for a smaller window
  while there is no other wait; waiting without it for a larger one.

A level moves only when the same was called for twice in a row, by one step, within its bounds:
never above the configured alpha, so what may train is bounded as without adapting. `Occupancy`
measures how much of the time the environments had something to do.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypedDict

from rollart.control.groups import Group
from rollart.control.rules import Rules
from rollart.control.staleness import Staleness
from rollart.events import (
    Adapt,
    Command,
    Drop,
    DropReason,
    Event,
    Launch,
    RunStarted,
    StepFinished,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TurnCut,
)
from rollart.types import TrajectoryId


@dataclass(slots=True, kw_only=True)
class Occupancy:
    """How much of the environments' time is used, since a moment."""

    places: int = 0
    since_s: float = 0.0
    taken: int = 0
    used_s: float = 0.0
    _at_s: float = 0.0

    def move(self, now: float, change: int) -> None:
        """Note that so many environments more, or fewer, are in use."""
        self.used_s += self.taken * (now - self._at_s)
        self._at_s = now
        self.taken += change

    def idle_share(self, now: float) -> float:
        """Return the share of the time that was not used."""
        self.move(now, 0)
        return max(0.0, 1 - self.used_s / (self.places * (now - self.since_s)))

    def restart(self, now: float) -> None:
        """Count from now on."""
        self.move(now, 0)
        self.used_s, self.since_s = 0.0, now


_LITTLE = 0.05
_MUCH = 0.10
_WORTH, _TOO_MUCH = 0.25, 0.5
"""Waste that extra groups may add, and must not exceed, beside the time they are to save."""
_WEIGHT = 0.3
"""What the last step weighs in the running means."""
_CALLS = 2
"""Calls for the same direction in a row that move a level."""


class LeverRecord(TypedDict):
    """A lever in a snapshot."""

    level: int
    leaning: int


class AdapterRecord(TypedDict):
    """An adapter in a snapshot."""

    alpha: LeverRecord
    extra_groups: LeverRecord
    least_waste: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the time between two steps was spent on."""

    wait: float
    """Time the trainer waited for its batch."""
    held: float
    """Time of that for which it had one, and waited for work about to become too old."""
    tail: float
    """Time it waited for the slow half of the groups longer than for the fast half."""
    stale: float
    """Cost of attempts whose group became too old."""
    surplus: float
    """Cost of attempts whose group was not needed."""
    idle: float
    """Time of environments that ran nothing, where extra groups would have used it."""

    @property
    def waste(self) -> float:
        """Cost thrown away."""
        return self.stale + self.surplus

    def towards(self, latest: "Shares") -> "Shares":
        """Return the running mean that takes in the latest shares."""
        return Shares(
            wait=self.wait + _WEIGHT * (latest.wait - self.wait),
            held=self.held + _WEIGHT * (latest.held - self.held),
            tail=self.tail + _WEIGHT * (latest.tail - self.tail),
            stale=self.stale + _WEIGHT * (latest.stale - self.stale),
            surplus=self.surplus + _WEIGHT * (latest.surplus - self.surplus),
            idle=self.idle + _WEIGHT * (latest.idle - self.idle),
        )

    def redundancy_call(self, *, cost: float, least_waste: float) -> int:
        """Return the direction in which more or fewer extra groups are called for.

        `cost` is the time they could save.
        """
        added = self.waste - least_waste
        if self.waste > _LITTLE and (cost < _LITTLE or added > _TOO_MUCH * cost):
            return -1
        is_useful = self.tail + least_waste > _MUCH or self.idle > _MUCH
        return 1 if is_useful and cost > _MUCH and added < _WORTH * cost else 0

    def window_call(self) -> int:
        """Return the direction in which a larger or smaller window is called for."""
        wait, aged = self.wait - self.held, self.stale + self.held
        if wait < _LITTLE and aged > _MUCH:
            return -1
        return 1 if wait > _MUCH and aged < _LITTLE else 0


@dataclass(slots=True, kw_only=True)
class Lever:
    """A level that moves within bounds when the same direction is called for in a row."""

    level: int
    lowest: int
    highest: int
    step: int = 1
    leaning: int = 0
    """Calls in a row, negative for downwards."""

    def call(self, direction: int) -> None:
        """Take a call into account."""
        self.leaning = direction + (self.leaning if self.leaning * direction > 0 else 0)
        if abs(self.leaning) >= _CALLS:
            self.leaning = 0
            self.move_to(self.level + direction * self.step)

    def move_to(self, level: int) -> None:
        """Move to a level, or as near as the bounds allow."""
        self.level = min(self.highest, max(self.lowest, level))


class Adapter:
    """Watches a run and moves its two levels."""

    def __init__(self, rules: Rules, *, bound: Staleness) -> None:
        self._redundancy, per_step = rules.redundancy, rules.batching.groups_per_step
        self._bound = bound
        self._in_window = rules.mode.admission == "window"
        self.is_on = bound.adaptive or rules.redundancy.adaptive
        self.alpha = Lever(level=bound.alpha, lowest=min(1, bound.alpha), highest=bound.alpha)
        self.extra_groups = Lever(
            level=rules.redundancy.extra_groups,
            lowest=0,
            highest=rules.redundancy.most_extra_groups(per_step),
            step=max(1, per_step // 4),
        )
        self._completions: deque[float] = deque(maxlen=per_step)
        self._free_s = 0.0
        self.held_s = 0.0
        """How long the step that begins was held back at the staleness bound."""
        self._trained_s: float | None = None
        self._trained = 0
        self._mean: Shares | None = None
        self._least_waste: float | None = None
        self._costs: dict[TrajectoryId, int] = {}
        self._lost: dict[TrajectoryId, DropReason] = {}
        self._cut: dict[TrajectoryId, DropReason] = {}
        """Attempts that ended since the last step; later events may add to them."""
        self._spent: Counter[str] = Counter()
        self._running = Occupancy()

    def complete(self, now: float) -> None:
        """Note that a group completed."""
        self._completions.append(now)

    def lose(self, group: Group, reason: DropReason) -> None:
        """Note that a group is dropped: its cost is wasted if it was stale or surplus."""
        if self.is_on and reason in ("stale", "surplus"):
            attempts = (attempt.id for attempt in group.in_flight.values())
            self._lost.update(dict.fromkeys([*attempts, *group.trajectories], reason))

    def note(self, now: float, event: Event, commands: Sequence[Command]) -> Adapt | None:
        """Note an event and its commands; return the levels at the start and when they change."""
        self._note_event(now, event)
        judged = self._levels() if isinstance(event, RunStarted) else None
        for command in commands:
            match command:
                case Launch():
                    self._running.move(now, 1)
                case Drop():
                    for id_ in command.ids:
                        self._book(id_, self._costs.pop(id_, 0))
                case Train():
                    ids = (id_ for group in command.groups for id_ in group)
                    self._spent["trained"] += sum(self._costs.pop(id_, 0) for id_ in ids)
                    judged = self._judge(now)
                case _:
                    pass
        return judged

    def record(self) -> AdapterRecord:
        """Return the levels as a snapshot keeps them."""
        alpha, extra = self.alpha, self.extra_groups
        return AdapterRecord(
            alpha=LeverRecord(level=alpha.level, leaning=alpha.leaning),
            extra_groups=LeverRecord(level=extra.level, leaning=extra.leaning),
            least_waste=self._least_waste,
        )

    def restore(self, record: AdapterRecord) -> Adapt:
        """Restore the levels of a snapshot, within this run's bounds; return them."""
        for lever, saved, is_adaptive in (
            (self.alpha, record["alpha"], self._bound.adaptive),
            (self.extra_groups, record["extra_groups"], self._redundancy.adaptive),
        ):
            if is_adaptive:
                lever.move_to(saved["level"])
                lever.leaning = saved["leaning"]
        self._least_waste = record["least_waste"]
        return self._levels()

    def check(self) -> None:
        """Assert that the levels are within bounds and that no cost is waited for twice."""
        for lever in (self.alpha, self.extra_groups):
            assert lever.lowest <= lever.level <= lever.highest
            assert abs(lever.leaning) < _CALLS
        assert all(count >= 0 for count in self._spent.values())

    def _note_event(self, now: float, event: Event) -> None:
        match event:
            case RunStarted():
                self._free_s = now
                self._running = Occupancy(places=event.slots, since_s=now)
            case StepFinished():
                self._free_s = now
            case TrajectoryFinished(info=info):
                self._costs[info.id] = info.cost
                self._running.move(now, -1)
            case TrajectoryCancelled() | TrajectoryFailed():
                if event.id in self._lost:
                    self._cut[event.id] = self._lost[event.id]
                self._book(event.id, event.cost)
                self._running.move(now, -1)
            case TurnCut():
                if event.id in self._cut:
                    self._spent[self._cut.pop(event.id)] += event.cost
            case _:
                pass

    def _book(self, id_: TrajectoryId, cost: int) -> None:
        reason = self._lost.pop(id_, None)
        if reason is not None:
            self._spent[reason] += cost

    def _judge(self, now: float) -> Adapt | None:
        """Judge the time since the step before, once a full window has been trained on."""
        before, since_s = self._levels(), self._trained_s
        if since_s is not None and now > since_s and self._trained > self._bound.alpha:
            latest = self._shares(now, period_s=now - since_s)
            self._mean = latest if self._mean is None else self._mean.towards(latest)
            self._call(self._mean)
        self._trained_s = now
        self._trained += 1
        self._spent.clear()
        self._cut.clear()
        self._running.restart(now)
        after = self._levels()
        return after if after != before else None

    def _call(self, mean: Shares) -> None:
        """Call for what the running means say."""
        least = mean.waste if self._least_waste is None else min(self._least_waste, mean.waste)
        self._least_waste = least
        if self._redundancy.adaptive:
            cost = mean.wait if self._in_window else mean.tail
            self.extra_groups.call(mean.redundancy_call(cost=cost, least_waste=least))
        if self._bound.adaptive:
            self.alpha.call(mean.window_call())

    def _shares(self, now: float, *, period_s: float) -> Shares:
        wait_s = now - self._free_s
        total = max(1, self._spent.total())
        return Shares(
            wait=wait_s / period_s,
            held=self.held_s / period_s,
            tail=max(0.0, min(wait_s, self._tail_s())) / period_s,
            stale=self._spent["stale"] / total,
            surplus=self._spent["surplus"] / total,
            idle=self._running.idle_share(now) if self._in_window else 0.0,
        )

    def _tail_s(self) -> float:
        """Return how much longer the slow half of the last groups took than the fast half."""
        times = self._completions
        if len(times) < (times.maxlen or 0):
            return 0.0
        return times[0] + times[-1] - 2 * median(times)

    def _levels(self) -> Adapt:
        return Adapt(alpha=self.alpha.level, extra_groups=self.extra_groups.level)
