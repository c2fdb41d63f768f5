"""The scheduler: events in, commands out, and all rollout state that matters in between.

    RunStarted ─► fill ─► Launch … TrajectoryFinished ─► (Score … Scored) ─► group complete
         ▲                                                                        │
    served, window moves                                              enough groups? Train
         │                                                                        │
    EngineUpdated ◄─ Suspend/Update/Resume ◄─ Published ◄─ Publish ◄─ StepFinished ┘

Invariants, asserted by `invariants.check` and driven by random event orders in the tests: every
launched attempt ends exactly once (trained, dropped, cancelled or failed); a batch never holds
work older than the mode promises; a slot runs one attempt at a time; nothing one attempt does
makes another wait. The scheduler holds no tokens, reads no clock and draws no unseeded number, so
the same events give the same commands. Its public fields are for `snapshot` and `invariants`.
"""

from collections import deque
from typing import assert_never, cast, get_args

from rollart.control.admission import Admission
from rollart.control.batching import ReadyQueue
from rollart.control.groups import Attempt, Group
from rollart.control.hedging import Hedges
from rollart.control.rules import Rules
from rollart.control.slots import Slots
from rollart.control.staleness import Ages
from rollart.control.syncing import Syncer
from rollart.events import (
    Cancel,
    CancelReason,
    Command,
    Drop,
    DropReason,
    EngineSuspended,
    EngineUpdated,
    Event,
    Halt,
    Launch,
    Publish,
    Published,
    RunStarted,
    Score,
    ScoreFailed,
    StepFinished,
    StopRequested,
    Train,
    TrajectoryBorn,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TrajectoryScored,
    Wake,
    Woke,
)
from rollart.seeds import derive_seed
from rollart.types import GroupId, TrajectoryId, Version


class Scheduler:
    """The reducer over a run's events."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.optimizer = Version(0)
        self.bound = rules.mode.staleness(rules.staleness)
        self.admission = Admission(
            mode=rules.mode,
            batching=rules.batching,
            staleness=self.bound,
            redundancy=rules.redundancy,
        )
        self.groups: dict[GroupId, Group] = {}
        self.attempts: dict[TrajectoryId, Attempt] = {}
        self.queue: deque[tuple[Group, int]] = deque()
        self.ready = ReadyQueue(rules.batching)
        self.rolling_ages = Ages()
        self.ready_ages = Ages()
        self.training: tuple[Group, ...] = ()
        self.next_group = 0
        self.next_trajectory = 0
        self.failures = 0
        self.filtered = 0
        self.published = Version(0)
        self.ending: CancelReason | None = None
        self.syncer = Syncer(rules.syncing)
        self.slots = Slots(0)
        self.hedges = Hedges(rules.redundancy.hedge_after)
        self._trained: deque[Group] = deque()
        self._unscored: list[Attempt] = []
        self._failures_in_a_row = 0
        self._wake_at: float | None = None
        self._hold_until: float | None = None
        self._out: list[Command] = []

    # --- what others may ask ----------------------------------------------------------------

    @property
    def served(self) -> Version:
        """The oldest version any engine serves."""
        return self.syncer.served

    @property
    def done(self) -> bool:
        """Whether the run has ended and nothing is in flight."""
        return (
            self.ending is not None
            and not self.attempts
            and not self.training
            and not self.syncer.active
            and self.served == self.optimizer
        )

    def waiting_for(self) -> str:
        """Say in a few words what the next optimizer step waits for."""
        missing = self.rules.batching.groups_per_step - self.admission.ready
        if self.training:
            return "the optimizer"
        if missing > 0:
            return f"{missing} of {self.rules.batching.groups_per_step} groups"
        return "work about to expire" if self._should_hold() else "weights"

    def is_fresh(self, born: Version) -> bool:
        """Say whether work born of `born` may still train, where the mode holds the bound."""
        return self.rules.mode.bound == "start" or self.bound.is_fresh(
            born, optimizer=self.optimizer, served=self.served
        )

    # --- the reducer ------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in and return what is to be done."""
        self._out = []
        if isinstance(event, Woke):
            now = max(now, event.at_s)  # a timer may fire a moment early
        self._note(event, now)
        if isinstance(event, TrajectoryBorn) and not self._out:
            return self._out  # a birth that drops nothing makes room for nothing
        self._train(now)
        self._sync()
        self._hedge(now)
        self._fill(now)
        self._score_finished()
        return self._out

    def _note(self, event: Event, now: float) -> None:  # noqa: PLR0912
        match event:
            case TrajectoryBorn():
                self._birth(self.attempts[event.id], event.version)
            case TrajectoryFinished():
                self.hedges.finish(event.info.id, now)
                self._finish(self.attempts[event.info.id], event)
            case TrajectoryFailed():
                self.hedges.stop(event.id, now)
                self._fail(self.attempts.pop(event.id), event, now)
            case TrajectoryCancelled():
                self._cancelled(self.attempts.pop(event.id), now)
            case TrajectoryScored():
                self._score(self.attempts.pop(event.id), event.reward)
            case ScoreFailed():
                self._score_failed(self.attempts.pop(event.id))
            case StepFinished():
                self._step_finished(event.version)
            case Published():
                self.published = max(self.published, event.version)
            case EngineSuspended():
                self._out += self.syncer.suspended(event.engine)
            case EngineUpdated():
                self._engine_updated(event)
            case Woke():
                # An earlier Wake overtook the others: each one's answer would ask for another.
                if event.at_s == self._wake_at:
                    self._wake_at = None
            case RunStarted():
                self.syncer.join(event.engines)
                spares = event.slots if self.rules.retry.spares else 0
                self.slots = Slots(event.slots, spares=spares)
                self._expire()
                self._end_when_trained()
            case StopRequested():
                self._end("interrupted")
            case _ as never:
                assert_never(never)

    # --- launching --------------------------------------------------------------------------

    def _fill(self, now: float) -> None:
        if self.rules.mode.update == "idle" and self.syncer.active:
            return
        while self.ending is None:
            while self.queue and self.queue[0][1] not in self.queue[0][0].queued:
                self.queue.popleft()
            if not self.queue and not self._may_open():
                return
            slot = self.slots.take(now)
            if slot is None:
                if self.slots.next_return_s is not None:
                    self._wake(self.slots.next_return_s)
                return
            if not self.queue:
                self._open_group()
            group, member = self.queue.popleft()
            attempt = Attempt(
                id=TrajectoryId(self.next_trajectory),
                group=group,
                member=member,
                number=group.queued.pop(member),
                slot=slot,
            )
            self.next_trajectory += 1
            self.attempts[attempt.id] = attempt
            self.hedges.launch(attempt.id, now)
            group.flying[member] = attempt
            self._out.append(
                Launch(
                    id=attempt.id,
                    group=group.id,
                    member=member,
                    attempt=attempt.number,
                    task=group.id,
                    slot=slot,
                    seed=derive_seed(self.rules.seed, group.id, member, attempt.number),
                )
            )

    def _may_open(self) -> bool:
        steps_left = self.rules.steps - self.optimizer - (1 if self.training else 0)
        return self.admission.may_open(steps_left=steps_left, served=self.served)

    def _open_group(self) -> None:
        members = range(self.rules.redundancy.members(self.rules.batching.group_size))
        queued = dict.fromkeys(members, 0)
        group = Group(id=GroupId(self.next_group), queued=queued, members=len(queued))
        self.next_group += 1
        self.groups[group.id] = group
        self.admission.open()
        self.queue.extend((group, member) for member in members)

    def _hedge(self, now: float) -> None:
        """Queue a rival for every attempt that is overdue."""
        for id_ in self.hedges.overdue(now):
            attempt = self.attempts[id_]
            if attempt.state == "running" and self.ending is None:
                group = attempt.group
                group.queued[group.members] = 0
                self.queue.appendleft((group, group.members))
                group.members += 1
        if self.hedges.next_s is not None and self.ending is None:
            self._wake(self.hedges.next_s)

    def _wake(self, at_s: float) -> None:
        if self._wake_at is None or at_s < self._wake_at:
            self._wake_at = at_s
            self._out.append(Wake(at_s=at_s))

    # --- the life of an attempt -------------------------------------------------------------

    def _birth(self, attempt: Attempt, version: Version) -> None:
        group = attempt.group
        if attempt.state == "cancelling" or (group.born is not None and group.born <= version):
            return
        if group.born is not None:
            self.rolling_ages.remove(group.id, born=group.born)
        group.born = version
        self.rolling_ages.add(group.id, born=version)
        if not self.is_fresh(version):
            self._drop(group, "stale")

    def _finish(self, attempt: Attempt, event: TrajectoryFinished) -> None:
        self._failures_in_a_row = 0
        self.slots.give_back(attempt.slot, healthy=True)
        if attempt.state == "cancelling":
            del self.attempts[attempt.id]
            self._out.append(Drop(ids=(attempt.id,), reason=attempt.ending))
            return
        attempt.state = "finished"
        self._birth(attempt, event.info.born)
        if attempt.id not in self.attempts:
            return
        if event.info.reward is None:
            self._unscored.append(attempt)
        else:
            self._score(self.attempts.pop(attempt.id), event.info.reward)

    def _cancelled(self, attempt: Attempt, now: float) -> None:
        assert attempt.state == "cancelling"
        if self.hedges.stop(attempt.id, now):
            self._rest(attempt, now)
        else:
            self.slots.give_back(attempt.slot, healthy=False)

    def _rest(self, attempt: Attempt, now: float) -> None:
        """Keep a slot out of use for a while, longer after each failure in a row."""
        self.failures += 1
        failures = self.slots.count_failure(attempt.slot)
        draw = derive_seed(self.rules.seed, self.failures) / 2**63
        rest_s = self.rules.retry.rest_s(failures, draw=draw)
        self.slots.rest(attempt.slot, until=now + rest_s)

    def _fail(self, attempt: Attempt, event: TrajectoryFailed, now: float) -> None:
        self._rest(attempt, now)
        if attempt.state == "cancelling":
            return
        self._retry(attempt)
        self._failures_in_a_row += 1
        if self._failures_in_a_row == self.rules.retry.give_up_after:
            count, failure = self._failures_in_a_row, event.failure
            message = (
                f"{count} attempts in a row failed; the last: {failure.kind}: {failure.message}"
            )
            self._out.append(Halt(message=message))
            self._end("interrupted")

    def _retry(self, attempt: Attempt) -> None:
        group = attempt.group
        del group.flying[attempt.member]
        if attempt.number + 1 < self.rules.retry.max_attempts:
            group.queued[attempt.member] = attempt.number + 1
            self.queue.appendleft((group, attempt.member))
        else:
            self._settle(group)

    def _score_finished(self) -> None:
        together = self.rules.mode.score == "after_rollout"
        if not self._unscored or (together and (self.slots.taken or self.queue)):
            return
        ids: list[TrajectoryId] = []
        for attempt in self._unscored:
            if attempt.id in self.attempts:
                attempt.state = "scoring"
                ids.append(attempt.id)
        self._unscored.clear()
        if ids:
            self._out.append(Score(ids=tuple(ids)))

    def _score(self, attempt: Attempt, reward: float) -> None:
        if attempt.state == "discarded":
            return
        del attempt.group.flying[attempt.member]
        attempt.group.scored[attempt.member] = (attempt.id, reward)
        self._settle(attempt.group)

    def _score_failed(self, attempt: Attempt) -> None:
        if attempt.state == "discarded":
            return
        self._out.append(Drop(ids=(attempt.id,), reason="score_failed"))
        self._retry(attempt)

    # --- the life of a group ----------------------------------------------------------------

    def _settle(self, group: Group) -> None:
        """Complete or drop a group if no more is to come of it."""
        batching = self.rules.batching
        if len(group.scored) < batching.group_size:
            if group.flying or group.queued:
                return
            if len(group.scored) < min(batching.min_members, batching.group_size):
                self._drop(group, "too_few_members")
                return
        if self.rules.filter.keeps(group.rewards, dropped=self.filtered):
            self._complete(group)
        else:
            self.filtered += 1
            self._drop(group, "zero_variance")

    def _complete(self, group: Group) -> None:
        self._stop_attempts(group, "surplus")
        assert group.born is not None
        self.rolling_ages.remove(group.id, born=group.born)
        self.ready_ages.add(group.id, born=group.born)
        self.ready.push(group.id, born=group.born)
        group.state = "ready"
        if self.admission.complete():
            for other in list(self.groups.values()):
                if other.state == "rolling":
                    self._drop(other, "surplus")

    def _drop(self, group: Group, reason: DropReason) -> None:
        """End a rolling or ready group untrained."""
        is_cancel_reason = reason in get_args(CancelReason)
        cancelled = cast("CancelReason", reason) if is_cancel_reason else "group_dropped"
        self._stop_attempts(group, cancelled)
        if group.scored:
            self._out.append(Drop(ids=group.trajectories, reason=reason))
        del self.groups[group.id]
        rolling = group.state == "rolling"
        if group.born is not None:
            (self.rolling_ages if rolling else self.ready_ages).remove(group.id, born=group.born)
        if rolling:
            self.admission.rolling -= 1
        else:
            self.admission.ready -= 1

    def _stop_attempts(self, group: Group, reason: CancelReason) -> None:
        """Cancel what runs in a group and drop what has finished but is not scored."""
        for attempt in group.flying.values():
            if attempt.state == "running":
                attempt.state = "cancelling"
                attempt.ending = reason
                self._out.append(Cancel(id=attempt.id, reason=reason))
            else:
                self._out.append(Drop(ids=(attempt.id,), reason=reason))
                if attempt.state == "finished":
                    del self.attempts[attempt.id]
                attempt.state = "discarded"
        group.flying.clear()
        group.queued.clear()

    def _expire(self) -> None:
        """Drop what has become too old to train on."""
        if self.rules.mode.bound == "start":
            return
        judge = self.bound.judge(optimizer=self.optimizer, served=self.served)
        for ages in (self.rolling_ages, self.ready_ages):
            for group in ages.older_than(judge - self.bound.alpha):
                self._drop(self.groups[group], "stale")

    # --- training and syncing ---------------------------------------------------------------

    def _train(self, now: float) -> None:
        if (
            self.training
            or self.ending is not None
            or self.admission.ready < self.rules.batching.groups_per_step
            or not self.bound.may_train(optimizer=self.optimizer, served=self.served)
            or self._holds(now)
        ):
            return
        batch = [self.groups[group] for group in sorted(self.ready.take(self._is_ready))]
        ages = [self.optimizer - cast("Version", group.born) for group in batch]
        for group in batch:
            self.ready_ages.remove(group.id, born=cast("Version", group.born))
            group.state = "training"
        self.admission.ready -= len(batch)
        self.admission.consumed += len(batch)
        self.training = tuple(batch)
        self._hold_until = None
        self.filtered = 0
        groups = tuple(group.trajectories for group in batch)
        self._out.append(Train(version=self.optimizer, groups=groups, staleness=max(ages)))

    def _is_ready(self, group: GroupId) -> bool:
        return group in self.groups

    def _holds(self, now: float) -> bool:
        """Say whether the step waits for running work that it would make too old."""
        if not self._should_hold():
            self._hold_until = None
            return False
        if self.bound.at_bound == "wait":
            return True
        if self._hold_until is None:
            self._hold_until = now + self.bound.patience_s
        if now >= self._hold_until:
            return False
        self._wake(self._hold_until)
        return True

    def _should_hold(self) -> bool:
        return (
            self.bound.at_bound != "drop"
            and self.rules.mode.bound == "always"
            and self.bound.should_hold(
                rolling=self.rolling_ages,
                ready=self.ready_ages,
                optimizer=self.optimizer,
                groups_per_step=self.rules.batching.groups_per_step,
            )
        )

    def _step_finished(self, version: Version) -> None:
        self.optimizer = version
        for group in self.training:
            group.state = "trained"
            group.produced = version
            self._trained.append(group)
        self.training = ()
        self._out.append(Publish(version=version))
        self._expire()
        self._end_when_trained()

    def _sync(self) -> None:
        if self.published <= self.served or self.syncer.active:
            return
        is_idle = not self.slots.taken and (not self.admission.rolling or self.ending is not None)
        if self.rules.mode.update == "at_once" or is_idle:
            self._out += self.syncer.begin(self.published)

    def _engine_updated(self, event: EngineUpdated) -> None:
        before = self.served
        self._out += self.syncer.updated(event.engine, event.version)
        if self.served == before:
            return
        while self._trained and cast("Version", self._trained[0].produced) <= self.served:
            del self.groups[self._trained.popleft().id]
            self.admission.consumed -= 1
        self._expire()

    # --- the end ----------------------------------------------------------------------------

    def _end_when_trained(self) -> None:
        if self.optimizer >= self.rules.steps:
            self._end("run_finished")

    def _end(self, reason: CancelReason) -> None:
        """Stop launching and training; an interrupted run keeps what it can resume from."""
        if self.ending is not None:
            return
        self.ending = reason
        for group in list(self.groups.values()):
            if group.state == "rolling" and reason == "interrupted":
                again = {member: attempt.number for member, attempt in group.flying.items()}
                again |= group.queued
                self._stop_attempts(group, reason)
                group.queued = again
            elif group.state in ("rolling", "ready") and reason == "run_finished":
                self._drop(group, reason)
