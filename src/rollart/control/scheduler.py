"""The scheduler: events in, commands out, and all rollout state in between.

    RunStarted ─► fill ─► Launch … TrajectoryFinished ─► (Score … Scored) ─► group complete
         ▲                                                                        │
    served, window moves                                              enough groups? Train
         │                                                                        │
    EngineUpdated ◄─ Suspend/Update/Resume ◄─ Published ◄─ Publish ◄─ StepFinished ┘

`GroupTable` owns the groups, `AttemptTable` their attempts, `ServedWeights` the engines' versions;
`Lifecycle` ends attempts and groups; `StepGate` decides whether a step that could begin waits. This
module decides what happens when. Optional rules are attached at one place each, in `handle`:

| rule           | place                                             | off by default because |
|----------------|---------------------------------------------------|------------------------|
| hedging        | `_hedge`, before slots are filled                 | `hedge_after = 0`      |
| lending        | `_lend`, after slots are filled                   | `lending.enabled`      |
| adaptive       | `_adapt`, last, sees the event and the commands   | `adaptive`             |
| longest first  | `GroupTable.dispatcher`, which picks the next task | `dispatch.order`       |
| latency model  | `Router`, not here: engines are chosen per request | `routing.learn`        |

Invariants, asserted by `check` and driven by random event orders in the tests: every launched
attempt ends exactly once (trained, dropped, cancelled or failed); a batch never holds work older
than the mode allows; a slot runs one attempt at a time; no attempt makes another wait. They hold
because every state change is one method of one table. The scheduler reads no clock and draws no
unseeded number, so the same events give the same commands.
"""

from collections.abc import Callable
from typing import assert_never, cast

from rollart.control.adaptive import Adapter
from rollart.control.attempts import AttemptTable
from rollart.control.groups import Group, GroupTable
from rollart.control.lifecycle import Lifecycle
from rollart.control.rules import Rules, one_domain
from rollart.control.step_gate import StepGate
from rollart.control.task_order import AttemptDurations, DomainOf
from rollart.control.weight_sync import ServedWeights
from rollart.events import (
    CancelReason,
    Command,
    EngineJoined,
    EngineLent,
    EngineLost,
    EngineRecalled,
    EngineSuspended,
    EngineUpdated,
    Event,
    Halt,
    Publish,
    Published,
    RunStarted,
    ScoreFailed,
    StepFinished,
    StopRequested,
    Train,
    TrajectoryBorn,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TrajectoryScored,
    TurnCut,
    Wake,
    Woke,
)
from rollart.types import Version

_MOST = 4.0
"""One slow attempt counts for at most this many means in the usual duration."""


class Scheduler:
    """The reducer over a run's events."""

    def __init__(self, rules: Rules, *, domain_of: DomainOf = one_domain) -> None:
        self.rules = rules
        self.optimizer = Version(0)
        self.bound = rules.mode.staleness(rules.staleness)
        self.groups = GroupTable(rules, bound=self.bound, domain_of=domain_of)
        usual = AttemptDurations(most=_MOST)
        self.attempts = AttemptTable(rules, durations=self.groups.dispatcher.durations, usual=usual)
        self.weights = ServedWeights(
            rules, bound=self.bound, groups=self.groups, attempts=self.attempts
        )
        self.adapter = Adapter(rules, bound=self.bound)
        self.lifecycle = Lifecycle(
            rules,
            groups=self.groups,
            attempts=self.attempts,
            lender=self.weights.lender,
            adapter=self.adapter,
            is_fresh=self.is_fresh,
        )
        self.ending: CancelReason | None = None
        self._gate = StepGate(rules, bound=self.bound, groups=self.groups, usual=usual)
        self._lends = rules.lending.enabled
        self._hedges = bool(rules.redundancy.hedge_after)
        self._wake_at: float | None = None
        self._out: list[Command] = []

    @property
    def served(self) -> Version:
        """The oldest version any engine serves."""
        return self.weights.syncer.served

    @property
    def training(self) -> tuple[Group, ...]:
        """The groups the trainer has."""
        return self.groups.training

    @property
    def done(self) -> bool:
        """Whether the run has ended and nothing is in flight."""
        return (
            self.ending is not None
            and self.attempts.are_over
            and not self.training
            and not self.weights.syncer.active
            and not self.weights.lender.is_away
            and self.served == self.optimizer
        )

    def waiting_for(self) -> str:
        """Say in a few words what the next optimizer step waits for."""
        missing = self.rules.batching.groups_per_step - self.groups.admission.ready
        if self.training:
            return "the optimizer"
        if missing > 0:
            return f"{missing} of {self.rules.batching.groups_per_step} groups"
        if self._gate.is_on and self.ending is None:
            return "work about to expire"
        return "lent engines" if self.weights.lender.is_away else "weights"

    def is_fresh(self, born: Version) -> bool:
        """Say whether work born of `born` may still train, where the mode holds the bound."""
        return self.rules.mode.bound == "start" or self.bound.is_fresh(
            born, optimizer=self.optimizer, served=self.served
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        """Process one event and return what to do."""
        self._out = []
        if isinstance(event, Woke):
            now = max(now, event.at_s)  # a timer may fire a moment early
        self._note(event, now)
        if self.groups.standing_by:
            self._out += self.lifecycle.promote(now)
        if self.lifecycle.give_up_reason and self.ending is None:
            self._out.append(Halt(message=self.lifecycle.give_up_reason))
            self._end("interrupted")
        if isinstance(event, TrajectoryBorn) and not self._out:
            return self._out  # a birth that drops nothing makes room for nothing
        self._train(now)
        may_idle = self.ending is not None or self._serves_too_old
        self._out += self.weights.sync(may_idle=may_idle, now=now)
        if self.ending is None:
            self._hedge(now)
            self._fill(now)
            self._lend(now)
        else:
            self._out += self.weights.lender.recall(now)
        self._out += self.attempts.take_unscored()
        self._adapt(event, now)
        return self._out

    def _note(self, event: Event, now: float) -> None:  # noqa: PLR0912
        match event:
            case TrajectoryBorn():
                self._out += self.lifecycle.born(event)
            case TrajectoryFinished():
                self._out += self.lifecycle.finished(event.info, now)
            case TrajectoryFailed():
                self._out += self.lifecycle.failed(event, now)
            case TrajectoryCancelled():
                self.attempts.cancelled(event.id, now)
            case TurnCut():
                pass  # the adapter's
            case TrajectoryScored():
                self._out += self.lifecycle.scored(event, now)
            case ScoreFailed():
                self._out += self.lifecycle.score_failed(event, now)
            case StepFinished():
                self._step_finished(event.version)
            case Published():
                self.weights.published = max(self.weights.published, event.version)
            case EngineSuspended():
                self._out += self.weights.syncer.suspended(event.engine)
            case EngineUpdated():
                self._change_engines(lambda: self.weights.updated(event.engine, event.version))
            case EngineJoined():
                self._change_engines(lambda: self.weights.join_late(event.engine))
            case EngineLost():
                self._change_engines(lambda: self.weights.lose(event.engine))
            case EngineLent():
                self.weights.lender.lent(event.engine, now)
            case EngineRecalled():
                self.weights.lender.recalled(event.engine, now)
            case Woke():
                # An earlier Wake overtook the others: each one's answer would ask for another.
                if event.at_s == self._wake_at:
                    self._wake_at = None
            case RunStarted():
                self._start(event)
            case StopRequested():
                self._end("interrupted")
            case _ as never:
                assert_never(never)

    def _start(self, event: RunStarted) -> None:
        self.weights.join(event.engines)
        self.attempts.open_slots(event.slots)
        self._expire()
        self._end_when_trained()

    def _fill(self, now: float) -> None:
        if self.rules.mode.update == "idle" and (
            self.weights.syncer.active or self._serves_too_old
        ):
            return
        attempts = self.attempts
        while attempts.has_queued() or self._may_open():
            slot = attempts.slots.take(now)
            if slot is None:
                self._wake(attempts.slots.next_return_s)
                return
            if not attempts.queue:
                attempts.enqueue(self.groups.open())
            self._out.append(attempts.launch(slot, now))

    @property
    def _serves_too_old(self) -> bool:
        """Whether what is served has become too old to begin anything with."""
        return not self.is_fresh(self.served)

    def _may_open(self) -> bool:
        steps_left = self.rules.steps - self.optimizer - (1 if self.groups.training else 0)
        return self.groups.admission.may_open(steps_left=steps_left, served=self.served)

    def _wake(self, at_s: float | None) -> None:
        """Ask to be woken at a time, if there is one and no earlier one was asked for."""
        if at_s is not None and (self._wake_at is None or at_s < self._wake_at):
            self._wake_at = at_s
            self._out.append(Wake(at_s=at_s))

    def _expire(self) -> None:
        """Drop what has become too old to train on."""
        if self.rules.mode.bound == "start":
            return
        judge = self.bound.judge(optimizer=self.optimizer, served=self.served)
        for group in self.groups.older_than(judge - self.bound.oldest):
            self._out += self.lifecycle.drop(group, "stale")

    def _train(self, now: float) -> None:
        if (
            self.groups.training
            or self.ending is not None
            or not self._has_batch
            or not self.bound.may_train(optimizer=self.optimizer, served=self.served)
            or self._must_wait(now)
            or not self._recall(now)
        ):
            return
        self.adapter.held_s = self._gate.end(now)
        batch = self.groups.take()
        groups = tuple(group.trajectories for group in batch)
        oldest = min(cast("Version", group.born) for group in batch)
        staleness = self.optimizer - oldest
        self._out.append(Train(version=self.optimizer, groups=groups, staleness=staleness))

    def _must_wait(self, now: float) -> bool:
        """Say whether the step waits for running work that it would make too old."""
        is_held = self._gate.must_wait(optimizer=self.optimizer, now=now)
        if is_held:
            self._wake(self._gate.until_s)
        return is_held

    def _step_finished(self, version: Version) -> None:
        self.optimizer = version
        self.groups.trained(version)
        self._out.append(Publish(version=version))
        self._expire()
        self._end_when_trained()

    def _hedge(self, now: float) -> None:
        """Queue a second attempt for members whose attempt is overdue."""
        if self._hedges:
            self._wake(self.attempts.hedge(now))

    def _lend(self, now: float) -> None:
        """Let idle training hardware serve."""
        if self._lends:
            self._out += self.weights.lend(optimizer=self.optimizer, now=now)

    def _adapt(self, event: Event, now: float) -> None:
        """Choose how far ahead groups are opened, by what the last steps cost."""
        if not self.adapter.is_on:
            return
        levels = self.adapter.note(now, event, self._out)
        if levels is not None:
            self.groups.admission.set_levels(alpha=levels.alpha, extra_groups=levels.extra_groups)
            self._out.append(levels)

    @property
    def _has_batch(self) -> bool:
        return self.groups.admission.ready >= self.rules.batching.groups_per_step

    def _recall(self, now: float) -> bool:
        """Take lent engines back; return whether all are."""
        self._out += self.weights.lender.recall(now)
        return not self.weights.lender.is_away

    def _change_engines(self, change: Callable[[], list[Command]]) -> None:
        """Note that an engine came, went or loaded weights, and what that lets go of."""
        before = self.served
        self._out += change()
        if self.served != before:
            self.groups.release(self.served)
            self._expire()

    def _end_when_trained(self) -> None:
        if self.optimizer >= self.rules.steps:
            self._end("run_finished")

    def _end(self, reason: CancelReason) -> None:
        """Stop launching and training; an interrupted run keeps what it can resume from."""
        if self.ending is not None:
            return
        self.ending = reason
        for group in list(self.groups.by_id.values()):
            if group.state == "rolling" and reason == "interrupted":
                self._out += self.attempts.postpone(group, reason)
            elif group.state in ("rolling", "ready") and reason == "run_finished":
                self._out += self.lifecycle.drop(group, reason)


def check(scheduler: Scheduler) -> None:
    """Assert every invariant; costs a pass over all state, so only tests and replay call it."""
    groups = scheduler.groups.by_id.values()
    lender = scheduler.weights.lender
    scheduler.weights.syncer.check()
    scheduler.groups.check()
    scheduler.attempts.check(groups)
    scheduler.adapter.check()
    admission, adapter = scheduler.groups.admission, scheduler.adapter
    assert admission.staleness.alpha == adapter.alpha.level <= scheduler.bound.alpha
    assert admission.redundancy.extra_groups == adapter.extra_groups.level
    assert not (lender.is_away and scheduler.training)
    if lender.is_serving:
        if scheduler.rules.mode.update == "at_once":
            assert 0 <= scheduler.optimizer - lender.version <= scheduler.bound.alpha
            assert scheduler.served <= lender.version
        else:
            assert lender.version == scheduler.served
    for group in groups:
        for place, member in group.hedges.items():
            assert place in group.queued or place in group.in_flight
            assert member in group.in_flight
        assert not set(group.queued) & set(group.in_flight)
        assert not set(group.unscored) & set(group.scored)
        if group.state != "rolling":
            assert not group.unscored
        if group.state in ("rolling", "ready") and group.born is not None:
            assert scheduler.is_fresh(group.born)
