"""Cohort: every group of a run, from its opening until the weights it made are served.

    open ─► rolling ─► ready ─► training ─► trained ─► released
               │         │
               └─────────┴─► removed (dropped untrained)

It owns a group's state, birth and scores (`Flights` owns its attempts) and counts each group in
one place at a time: the admission's counters, the ages and the ready queue agree with the states,
because every change of state goes through here.
"""

from collections import deque
from collections.abc import Iterator
from typing import Literal, cast

from rollart.control.admission import Admission
from rollart.control.batching import ReadyQueue
from rollart.control.dispatch import Dispatcher, DomainOf, one_domain
from rollart.control.groups import Attempt, Group
from rollart.control.rules import Rules
from rollart.control.staleness import Ages, Staleness
from rollart.types import GroupId, Version

Verdict = Literal["rolling", "ready", "too_few_members", "zero_variance"]
"""A group goes on, is worth training on, or is to be dropped for a reason."""


class Cohort:
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
        self.groups: dict[GroupId, Group] = {}
        self.rolling_ages = Ages()
        self.late_ages = Ages()
        """Rolling groups that the next step does not wait for."""
        self.ready_ages = Ages()
        self.training: tuple[Group, ...] = ()
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
        self.groups[group.id] = group
        self.admission.open()
        return group

    def restore(self, group: Group) -> None:
        """Take in a rolling or ready group of an earlier run."""
        self.groups[group.id] = group
        if group.state == "rolling":
            self.admission.rolling += 1
            if group.born is not None:
                self.rolling_ages.add(group.id, born=group.born)
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
        if len(group.scored) < batching.group_size:
            if group.flying or group.queued:
                return "rolling"
            if len(group.scored) < min(batching.min_members, batching.group_size):
                return "too_few_members"
        if self._rules.filter.keeps(group.rewards, dropped=self.filtered):
            return "ready"
        self.filtered += 1
        return "zero_variance"

    def complete(self, group: Group) -> list[Group]:
        """Make a group ready; return the rolling ones that are now surplus."""
        assert group.born is not None
        self.rolling_ages.remove(group.id, born=group.born)
        self.late_ages.discard(group.id, born=group.born)
        self._queue(group)
        group.state = "ready"
        if not self.admission.complete():
            return []
        return [other for other in self.groups.values() if other.state == "rolling"]

    def remove(self, group: Group) -> None:
        """Forget a rolling or ready group."""
        del self.groups[group.id]
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
        """The rolling groups that have a token."""
        return (self.groups[group] for group in self.rolling_ages)

    def older_than(self, version: int) -> list[Group]:
        """Return the untrained groups born before a version, rolling ones first."""
        ages = (self.rolling_ages, self.ready_ages)
        return [self.groups[group] for each in ages for group in each.older_than(version)]

    def take(self) -> tuple[Group, ...]:
        """Hand one batch of ready groups to the trainer, in id order."""
        batch = sorted(self._ready.take(self.groups.__contains__))
        self.training = tuple(self.groups[group] for group in batch)
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
            del self.groups[self._trained.popleft().id]
            self.admission.consumed -= 1

    def check(self) -> None:
        """Assert that every group is counted once, where its state says."""
        states = [group.state for group in self.groups.values()]
        assert states.count("rolling") == self.admission.rolling
        assert states.count("ready") == self.admission.ready == len(self.ready_ages)
        assert states.count("training") == len(self.training)
        assert states.count("trained") == len(self._trained)
        assert len(self.training) + len(self._trained) == self.admission.consumed
        assert len(self.rolling_ages) <= self.admission.rolling
        assert set(self.late_ages) <= set(self.rolling_ages)

    def _queue(self, group: Group) -> None:
        assert group.born is not None
        self.ready_ages.add(group.id, born=group.born)
        self._ready.push(group.id, born=group.born)
