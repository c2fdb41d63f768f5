"""Groups: the attempts at one task, from opening until the weights they trained are served.

    open ─► rolling ─► ready ─► training ─► trained ─► released
               │         │
               └─────────┴─► removed (dropped untrained)

A member is one place in a group; an attempt is one try at filling it. A member is queued, in flight
(running, or finished and not yet scored), scored, or lost (out of tries, or replaced by a surplus
member). A hedge has a place of its own until it, or the attempt that it doubles, ends.

Which members are trained is decided before anything is known of how they turn out: those launched
first that are not lost (`Group.chosen`). The same holds for the groups of an iteration
(`GroupTable.is_spare`). `redundancy.choice = "finished"` takes the first that finish instead.

`GroupTable` owns a group's state, birth and scores (`AttemptTable` owns its attempts). Every change
of state goes through it, so its counters (`Admission`), ages and ready queue agree with the states.

`Admission` decides whether another group may start. In iterations (sync, sync_plus, one_off) the
groups of a batch start together, and the next batch starts when this one has rolled out and the
served weights are at most `alpha` behind. In a window (areal, rollart) a group starts whenever
fewer are outstanding than the trainer can consume within `alpha` steps. No group starts that the
remaining steps could not train.

`ReadyQueue` decides which complete groups form the next batch. Any `groups_per_step` will do, so no
slow group delays others; oldest first uses the work nearest the staleness bound before it expires.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Literal, cast

from rollart.control.rules import Batching, Mode, Redundancy, Rules, one_domain
from rollart.control.staleness import Ages, Staleness
from rollart.control.task_order import Dispatcher, DomainOf
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
    """The oldest version that chose a first action in it."""
    queued: dict[int, int] = field(default_factory=dict[int, int])
    """Members waiting for a slot, with the number of their next attempt."""
    in_flight: dict[int, "Attempt"] = field(default_factory=dict[int, "Attempt"])
    """Attempts in flight by member."""
    scored: dict[int, tuple[TrajectoryId, float]] = field(
        default_factory=dict[int, tuple[TrajectoryId, float]]
    )
    """Finished attempts by member, with their rewards."""
    members: int = 0
    """Places it has had, hedges included."""
    hedges: dict[int, int] = field(default_factory=dict[int, int])
    """The places of hedges, queued or in flight, with the member that each doubles."""
    produced: Version | None = None
    """The version its training produced; it stays outstanding until that is served."""

    @property
    def trajectories(self) -> tuple[TrajectoryId, ...]:
        """The scored attempts, in member order."""
        return tuple(self.scored[member][0] for member in sorted(self.scored))

    @property
    def unscored(self) -> dict[int, int]:
        """Members queued or in flight, with the number of the attempt each needs."""
        both = self.queued | {member: each.number for member, each in self.in_flight.items()}
        return {member: number for member, number in both.items() if member not in self.hedges}

    def chosen(self, size: int) -> list[int]:
        """Return the members that will be trained: the first launched that are not lost."""
        return sorted({*self.scored, *self.unscored})[:size]

    def due_s(self, size: int, *, late_s: float, now: float) -> float:
        """Return until when enough of its members are on time to make it complete.

        One that runs is on time until `late_s` after its launch, or its hedge's; one that is queued
        or being scored until `late_s` from now.
        """
        began_s = dict.fromkeys(self.queued, now)
        for place, each in self.in_flight.items():
            member = self.hedges.get(place, place)
            start_s = each.launched_s if each.state == "running" else now
            began_s[member] = max(start_s, began_s.get(member, start_s))
        needed = max(1, min(size - len(self.scored), len(began_s)))
        return sorted(began_s.values())[-needed] + late_s


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


class ReadyQueue:
    """Complete groups in the order they will be taken; removed ones are skipped when met."""

    def __init__(self, rule: Batching) -> None:
        self._rule = rule
        self._heap: list[tuple[tuple[int, int], GroupId]] = []
        self._pushed = 0

    def push(self, group: GroupId, *, born: Version) -> None:
        """Add a complete group."""
        heappush(self._heap, (self._rule.key(born=born, finished=self._pushed), group))
        self._pushed += 1

    def take(self, is_ready: Callable[[GroupId], bool]) -> list[GroupId]:
        """Remove and return one batch; at least that many of the groups must be ready."""
        batch: list[GroupId] = []
        while len(batch) < self._rule.groups_per_step:
            group = heappop(self._heap)[1]
            if is_ready(group):
                batch.append(group)
        return batch


@dataclass(slots=True, kw_only=True)
class Admission:
    """Counts groups by where they are, and opens the door for more."""

    mode: Mode
    batching: Batching
    staleness: Staleness
    redundancy: Redundancy
    rolling: int = 0
    """Groups that have not completed."""
    ready: int = 0
    """Complete groups waiting to be trained."""
    consumed: int = 0
    """Groups in training, or trained but with their weights not yet served."""
    iteration: int = 0
    iteration_complete: int = 0
    """Groups of the current iteration that completed and were kept."""

    def may_open(self, *, steps_left: int, served: Version) -> bool:
        """Say whether another group may start; moves to the next iteration when it is time."""
        per_step, extra = self.batching.groups_per_step, self.redundancy.extra_groups
        is_window = self.mode.admission == "window"
        # What the last steps cannot train would be lost to whatever finishes before it.
        surplus = 0 if is_window and self.redundancy.choice == "launched" else extra
        if self.rolling + self.ready >= steps_left * per_step + surplus:
            return False
        if is_window:
            untrained = self.rolling + self.ready - extra
            free = self.staleness.free_groups(
                untrained, consumed=self.consumed, groups_per_step=per_step
            )
            return free > 0
        if self.is_iteration_complete:
            if self.rolling or served < self.iteration + 1 - self.staleness.alpha:
                return False
            self.iteration += 1
            self.iteration_complete = 0
        return self.iteration_complete + self.rolling < per_step + extra

    @property
    def is_iteration_complete(self) -> bool:
        """Whether the current iteration has the groups its batch needs."""
        return self.iteration_complete >= self.batching.groups_per_step

    @property
    def has_batch_to_come(self) -> bool:
        """Whether more groups are rolling than the surplus, which no step waits for."""
        return self.rolling > self.redundancy.extra_groups

    def resume(self, version: Version) -> None:
        """Find the iteration that the groups taken in from an earlier run belong to.

        The earlier run may have had another mode or batch, so it follows from the groups alone:
        every iteration gives one batch, and every batch one version.
        """
        whole, part = divmod(self.ready, self.batching.groups_per_step)
        if whole and not part and not self.rolling:
            whole, part = whole - 1, self.batching.groups_per_step
        self.iteration, self.iteration_complete = version + whole, part

    def set_levels(self, *, alpha: int, extra_groups: int) -> None:
        """Open groups by these levels from now on."""
        self.staleness = replace(self.staleness, alpha=alpha)
        self.redundancy = replace(self.redundancy, extra_groups=extra_groups)

    def open(self) -> None:
        """Count a group that starts."""
        self.rolling += 1

    def lose(self) -> None:
        """Count a ready group that is dropped: its iteration needs another."""
        self.ready -= 1
        self.iteration_complete -= 1
        if self.iteration_complete < 0:
            self.iteration -= 1
            self.iteration_complete += self.batching.groups_per_step

    def complete(self) -> bool:
        """Count a group that completed; return whether those still rolling are surplus."""
        self.rolling -= 1
        self.ready += 1
        self.iteration_complete += 1
        return self.mode.admission == "iteration" and self.is_iteration_complete


Verdict = Literal["rolling", "ready", "too_few_members", "zero_variance"]
"""A group is still rolling, is ready to be trained, or is dropped for a reason."""


class GroupTable:
    """The groups of a run and where each of them is."""

    def __init__(self, rules: Rules, *, bound: Staleness, domain_of: DomainOf = one_domain) -> None:
        self._rules = rules
        self.dispatcher = Dispatcher(
            rules.dispatch,
            groups_per_step=rules.batching.groups_per_step,
            domain_of=domain_of,
        )
        self.admission = Admission(
            mode=rules.mode,
            batching=rules.batching,
            staleness=bound,
            redundancy=rules.redundancy,
        )
        self.by_id: dict[GroupId, Group] = {}
        self.rolling_ages = Ages()
        self.late_ages = Ages()
        """Rolling groups that the next step does not wait for."""
        self.ready_ages = Ages()
        self.training: tuple[Group, ...] = ()
        self.standing_by: set[GroupId] = set()
        """Rolling groups that are whole, but trained only if an earlier one is lost."""
        self.next_group = 0
        self.filtered = 0
        self._ready = ReadyQueue(rules.batching)
        self._trained: deque[Group] = deque()

    def open(self) -> Group:
        """Start a group at the next task, with all its members queued."""
        members = self._rules.redundancy.members(self._rules.batching.group_size)
        task = self.dispatcher.next_task()
        group = Group(
            id=GroupId(self.next_group),
            task=task,
            domain=self.dispatcher.domain_of(task),
            queued=dict.fromkeys(range(members), 0),
            members=members,
        )
        self.next_group += 1
        self.by_id[group.id] = group
        self.admission.open()
        return group

    def restore(self, group: Group) -> None:
        """Take in a rolling or ready group of an earlier run."""
        self.by_id[group.id] = group
        if group.state == "rolling":
            self.admission.rolling += 1
            if group.born is not None:
                self.rolling_ages.add(group.id, born=group.born)
            if group.scored and not group.queued:
                self.standing_by.add(group.id)
            return
        self.admission.ready += 1
        self._queue(group)

    def birth(self, group: Group, version: Version) -> bool:
        """Note the weights a member began with; return whether they make the group older."""
        if group.born is not None:
            if group.born <= version:
                return False
            self.rolling_ages.remove(group.id, born=group.born)
            if self.late_ages.discard(group.id, born=group.born):
                self.late_ages.add(group.id, born=version)
        group.born = version
        self.rolling_ages.add(group.id, born=version)
        return True

    def score(self, attempt: Attempt, reward: float) -> None:
        """Note what an attempt at a member earned."""
        attempt.group.scored[attempt.member] = (attempt.id, reward)

    def judge(self, group: Group) -> Verdict:
        """Say what becomes of a rolling group; one that the filter refuses is counted."""
        batching = self._rules.batching
        trained = self.trained_members(group)
        if len(trained) < batching.group_size:
            if group.in_flight or group.queued:
                return "rolling"
            if len(trained) < min(batching.min_members, batching.group_size):
                return "too_few_members"
        rewards = [group.scored[member][1] for member in trained]
        if self._rules.filter.keeps(rewards, dropped=self.filtered):
            return "ready"
        self.filtered += 1
        return "zero_variance"

    def trained_members(self, group: Group) -> list[int]:
        """Return the scored members that would be trained if the group were complete now."""
        size = self._rules.batching.group_size
        if self._rules.redundancy.choice == "finished":
            return list(group.scored)[:size]
        return [member for member in group.chosen(size) if member in group.scored]

    def is_spare(self, group: Group) -> bool:
        """Say whether a group only stands in for an earlier one of its iteration that is lost."""
        if self._rules.mode.admission == "window" or self._rules.redundancy.choice == "finished":
            return False
        admission, size = self.admission, self._rules.batching.groups_per_step
        if not admission.redundancy.extra_groups:
            return False
        earlier = [each for each in self.by_id.values() if each.state == "rolling"]
        rank = sum(each.id < group.id for each in earlier)
        return admission.iteration_complete + rank >= size

    def keep_trained_members(self, group: Group) -> tuple[TrajectoryId, ...]:
        """Forget the scored members that will not be trained; return their attempts."""
        trained = self.trained_members(group)
        surplus = [member for member in group.scored if member not in trained]
        return tuple(group.scored.pop(member)[0] for member in sorted(surplus))

    def complete(self, group: Group) -> list[Group]:
        """Make a group ready; return the rolling ones that are now surplus."""
        assert group.born is not None
        self.rolling_ages.remove(group.id, born=group.born)
        self.late_ages.discard(group.id, born=group.born)
        self._queue(group)
        group.state = "ready"
        if not self.admission.complete():
            return []
        return [other for other in self.by_id.values() if other.state == "rolling"]

    def remove(self, group: Group) -> None:
        """Forget a rolling or ready group."""
        del self.by_id[group.id]
        self.standing_by.discard(group.id)
        is_rolling = group.state == "rolling"
        if group.born is not None:
            ages = self.rolling_ages if is_rolling else self.ready_ages
            ages.remove(group.id, born=group.born)
            self.late_ages.discard(group.id, born=group.born)
        if is_rolling:
            self.admission.rolling -= 1
        else:
            self.admission.lose()

    @property
    def born(self) -> Iterator[Group]:
        """The rolling groups in which the policy has acted."""
        return (self.by_id[group] for group in self.rolling_ages)

    def older_than(self, version: int) -> list[Group]:
        """Return the untrained groups born before a version, rolling ones first."""
        ages = (self.rolling_ages, self.ready_ages)
        return [self.by_id[group] for each in ages for group in each.older_than(version)]

    def take(self) -> tuple[Group, ...]:
        """Hand one batch of ready groups to the trainer, in id order."""
        batch = sorted(self._ready.take(self.by_id.__contains__))
        self.training = tuple(self.by_id[group] for group in batch)
        for group in self.training:
            self.ready_ages.remove(group.id, born=cast("Version", group.born))
            group.state = "training"
        self.admission.ready -= len(batch)
        self.admission.consumed += len(batch)
        self.filtered = 0
        return self.training

    def trained(self, version: Version) -> None:
        """Note that training has produced a version."""
        for group in self.training:
            group.state = "trained"
            group.produced = version
            self._trained.append(group)
        self.training = ()

    def release(self, served: Version) -> None:
        """Forget the trained groups whose weights are served."""
        while self._trained and cast("Version", self._trained[0].produced) <= served:
            del self.by_id[self._trained.popleft().id]
            self.admission.consumed -= 1

    def check(self) -> None:
        """Assert that every group is counted once, where its state says."""
        states = [group.state for group in self.by_id.values()]
        assert states.count("rolling") == self.admission.rolling
        assert states.count("ready") == self.admission.ready == len(self.ready_ages)
        assert states.count("training") == len(self.training)
        assert states.count("trained") == len(self._trained)
        assert len(self.training) + len(self._trained) == self.admission.consumed
        assert len(self.rolling_ages) <= self.admission.rolling
        assert set(self.late_ages) <= set(self.rolling_ages)
        for id_ in self.standing_by:
            group = self.by_id[id_]
            assert group.state == "rolling" and group.scored and not group.unscored

    def _queue(self, group: Group) -> None:
        assert group.born is not None
        self.ready_ages.add(group.id, born=group.born)
        self._ready.push(group.id, born=group.born)
