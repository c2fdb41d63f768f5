"""Simulator: drives the scheduler in simulated time, with simulated reward workers.

    inbox ─► Scheduler.handle ─► observers ─► execute each command
      ▲                                            │
      └── its result is a later event ◄────────────┘   (Loop: actions in order of time)

The counterpart of `rollout.controller`: the same scheduler, router, lock-step and turn counting,
but durations come from the cost model or from scripts. Given the same durations both issue the
same commands; tests/test_parity.py checks that.
"""

import gc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from rollart.config.simulation import ScoringOptions
from rollart.control.autoscaling import Orders, Scaler, Scaling
from rollart.control.episode import LockStep
from rollart.control.scheduler import Scheduler
from rollart.errors import InvariantError, UserError
from rollart.events import (
    Adapt,
    Admit,
    Cancel,
    Command,
    Drop,
    EngineJoined,
    EngineLent,
    EngineLost,
    EngineRecalled,
    EngineSuspended,
    EngineUpdated,
    Event,
    Halt,
    Launch,
    Lend,
    Publish,
    Published,
    Recall,
    Resume,
    RunStarted,
    Score,
    StepFinished,
    Suspend,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TrajectoryScored,
    Update,
    Wake,
    Woke,
)
from rollart.sim.attempt import SimAttempt, SimContext
from rollart.sim.fleet import Fleet
from rollart.sim.loop import Loop, Timer
from rollart.sim.world import Outages, World
from rollart.types import EngineId, EngineInfo, TrajectoryId, Version

Done = Callable[[], None]
_ENDLESS = 1 << 62


class RewardWorkers:
    """Runs reward functions in simulated time; no score waits for the result of another.

    Dedicated workers always exist and take scores in order. Elastic instances follow the rule of
    the live invoker (`control.autoscaling`): a score that finds none free starts one, up to a
    limit, and runs on the first one that is free; an instance that is idle for a while ends.

    """

    def __init__(self, options: ScoringOptions, *, loop: Loop) -> None:
        self.busy_s = 0.0
        self.cold_starts = 0
        self._options = options
        self._loop = loop
        self._busy = 0
        self._waiting: deque[tuple[float, Done]] = deque()
        rule = Scaling(
            max_instances=options.max_instances, idle_s=options.idle_s, queue_limit=_ENDLESS
        )
        self._scaler = Scaler(rule)
        self._calls = 0
        self._called: dict[int, tuple[float, Done]] = {}
        self._is_ticking = False

    @property
    def utilisation(self) -> float:
        """Share of the workers' existence in which they scored."""
        if self._options.kind == "elastic":
            return self._scaler.utilisation(now=self._loop.now)
        there_s = self._options.max_instances * self._loop.now
        return self.busy_s / there_s if there_s else 0.0

    def submit(self, seconds: float, done: Done) -> None:
        """Start a score that takes `seconds`; call `done` when it ends."""
        if self._options.kind == "elastic":
            call = self._calls
            self._calls += 1
            self._called[call] = (seconds, done)
            self._carry_out(self._scaler.called(call, now=self._loop.now))
        elif self._busy < self._options.max_instances:
            self._run(seconds, done)
        else:
            self._waiting.append((seconds, done))

    def _run(self, seconds: float, done: Done) -> None:
        self._busy += 1
        self.busy_s += seconds
        self._loop.after(seconds, partial(self._finish, done))

    def _finish(self, done: Done) -> None:
        self._busy -= 1
        if self._waiting:
            self._run(*self._waiting.popleft())
        done()

    def _carry_out(self, orders: Orders) -> None:
        for instance in orders.start:
            self.cold_starts += 1
            self._loop.after(self._options.cold_start_s, partial(self._start, instance))
        for call, _ in orders.run:
            seconds, done = self._called.pop(call)
            self.busy_s += seconds
            self._loop.after(seconds, partial(self._answer, call, done))
        due = self._scaler.next_tick
        if due is not None and not self._is_ticking:
            self._is_ticking = True
            self._loop.after(max(0.0, due - self._loop.now), self._tick)

    def _start(self, instance: int) -> None:
        self._carry_out(self._scaler.started(instance, now=self._loop.now))

    def _answer(self, call: int, done: Done) -> None:
        self._carry_out(self._scaler.answered(call, now=self._loop.now))
        done()

    def _tick(self) -> None:
        self._is_ticking = False
        self._carry_out(self._scaler.tick(now=self._loop.now))


Observer = Callable[[float, Event, Sequence[Command]], object]
_LATER_STEPS = 1 << 20
"""Steps added to an open-ended run, so that it never drains: more than any window holds."""


class Simulator:
    """Simulates a world until its scheduler is done."""

    def __init__(self, world: World, *, observers: Sequence[Observer] = ()) -> None:
        self.world = world
        self.loop = Loop()
        rules = world.rules
        if world.open_ended:
            rules = replace(rules, steps=rules.steps + _LATER_STEPS)
        self.scheduler = Scheduler(rules, domain_of=world.workload.domain)
        by_domain = world.rules.mode.affinity
        routing = world.routing if by_domain else replace(world.routing, affinity={})
        self.fleet = Fleet(world.make_engines(self.loop), routing=routing, loop=self.loop)
        self.outages = Outages(world.outages, loop=self.loop, lose=self._lose, regain=self._regain)
        self.rewards = RewardWorkers(world.rewards, loop=self.loop)
        self.events = 0
        """Events the scheduler has handled so far."""
        self.attempts: dict[TrajectoryId, SimAttempt] = {}
        self.finished: dict[TrajectoryId, SimAttempt] = {}
        self._observers = observers
        self._inbox: deque[Event] = deque()
        self._lockstep = LockStep() if world.rules.mode.lockstep else None
        self._arrived: dict[TrajectoryId, Callable[[], None]] = {}
        self._loading: dict[EngineId, Timer] = {}
        """Timers of the weight loads in progress."""
        self._shared = SimContext(
            loop=self.loop,
            generation=self.fleet,
            arrive=self._arrive,
            post=self._post_attempt_event,
            is_fresh=self.scheduler.is_fresh,
            call_s=world.call_s,
        )

    def run(self) -> None:
        """Simulate until the scheduler is done, or until the last step of an open-ended run.

        The garbage collector is off meanwhile: a run makes almost no reference cycles, and the
        collector's passes over every attempt would take a tenth of the time.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._run()
        finally:
            if was_enabled:
                gc.enable()

    def _run(self) -> None:
        infos = self.fleet.infos
        self.outages.start([info.id for info in infos if not info.lent])
        self.post(RunStarted(engines=infos, slots=self.world.slots))
        self._drain()
        inbox, step = self._inbox, self.loop.step
        while not self.done:
            while not inbox:
                if not step():
                    raise InvariantError(
                        "the simulated run is stuck: no event and no timer is left"
                    )
            self._drain()

    @property
    def done(self) -> bool:
        """Whether the simulation has ended."""
        if self.world.open_ended and self.scheduler.optimizer >= self.world.rules.steps:
            return True
        return self.scheduler.done

    @property
    def actions(self) -> int:
        """Actions the loop has run so far; some of them posted scheduler events."""
        return self.loop.count

    def post(self, event: Event) -> None:
        """Queue an event for the scheduler."""
        self._inbox.append(event)

    def _post_attempt_event(self, event: Event) -> None:
        """Post an attempt's event; an attempt that has ended can no longer be cancelled."""
        if isinstance(event, TrajectoryFinished):
            self.finished[event.info.id] = self.attempts.pop(event.info.id)
        elif isinstance(event, TrajectoryFailed):
            del self.attempts[event.id]
        self.post(event)

    def _drain(self) -> None:
        inbox, scheduler, loop = self._inbox, self.scheduler, self.loop
        while inbox and not self.done:
            event = inbox.popleft()
            commands = scheduler.handle(event, loop.now)
            self.events += 1
            for observer in self._observers:
                observer(loop.now, event, commands)
            if commands:
                self._execute(commands)
            self._leave_lockstep(event)

    def _execute(self, commands: Sequence[Command]) -> None:  # noqa: PLR0912
        launches = [command for command in commands if isinstance(command, Launch)]
        if launches and self._lockstep is not None:
            self._lockstep.join([launch.id for launch in launches])
        for command in commands:
            match command:
                case Launch():
                    self._launch(command)
                case Cancel():
                    attempt = self.attempts.pop(command.id, None)
                    if attempt is not None:
                        self._arrived.pop(command.id, None)
                        attempt.cancel()
                case Drop():
                    for id_ in command.ids:
                        del self.finished[id_]
                case Score():
                    for id_ in command.ids:
                        self._score(self.finished[id_])
                case Train():
                    self._train(command)
                case Halt():
                    raise UserError(command.message)
                case Adapt():
                    pass
                case Wake():
                    delay_s = max(0.0, command.at_s - self.loop.now)
                    self._later(delay_s, Woke(at_s=command.at_s))
                case _:
                    self._sync(command)
        self.fleet.close_all([each.engine for each in commands if isinstance(each, Recall)])

    def _sync(self, command: Publish | Suspend | Update | Resume | Admit | Lend | Recall) -> None:
        durations, fleet = self.world.durations, self.fleet
        match command:
            case Publish():
                version = command.version
                self._later(durations.publish_s(version), Published(version=version))
            case Suspend():
                fleet.engine(command.engine).suspend()
                self.post(EngineSuspended(engine=command.engine))
            case Update():
                seconds = durations.update_s(command.version, engine=command.engine)
                timer = self.loop.after(seconds, partial(self._update, command))
                self._loading[command.engine] = timer
            case Resume():
                fleet.engine(command.engine).resume()
            case Admit():
                fleet.open(command.engine)
            case Lend():
                self.loop.after(durations.lend_s(), partial(self._lend, command))
            case Recall():
                self._later(durations.recall_s(), EngineRecalled(engine=command.engine))
            case _ as never:
                assert_never(never)

    def _later(self, seconds: float, event: Event) -> None:
        self.loop.after(seconds, partial(self.post, event))

    def _launch(self, launch: Launch) -> None:
        script = self.world.workload.script(launch)
        attempt = SimAttempt(launch, script=script, shared=self._shared)
        self.attempts[launch.id] = attempt
        attempt.start()

    def _leave_lockstep(self, event: Event) -> None:
        """Remove an ended attempt from lock-step, after its successor has joined."""
        match event:
            case TrajectoryFinished():
                ended = event.info.id
            case TrajectoryFailed() | TrajectoryCancelled():
                ended = event.id
            case _:
                return
        if self._lockstep is not None:
            self._release(self._lockstep.leave(ended))

    def _arrive(self, id_: TrajectoryId, action: Callable[[], None]) -> None:
        if self._lockstep is None:
            action()
            return
        self._arrived[id_] = action
        self._release(self._lockstep.arrive(id_))

    def _release(self, ids: Sequence[TrajectoryId]) -> None:
        """Run the actions of attempts that wait; cancelled attempts no longer do."""
        for action in [self._arrived.pop(id_) for id_ in ids if id_ in self._arrived]:
            action()

    def _score(self, attempt: SimAttempt) -> None:
        seconds = attempt.script.score_s
        assert seconds is not None
        event = TrajectoryScored(id=attempt.id, reward=attempt.script.reward)
        self.rewards.submit(seconds, partial(self.post, event))

    def _train(self, command: Train) -> None:
        tokens = sum(
            self.finished.pop(id_).turns.tokens for group in command.groups for id_ in group
        )
        seconds = self.world.durations.train_s(tokens, version=command.version)
        event = StepFinished(
            version=Version(command.version + 1), metrics={"tokens": float(tokens)}
        )
        self._later(seconds, event)

    def _update(self, command: Update) -> None:
        del self._loading[command.engine]
        keep = self.world.rules.syncing.keep_kv
        self.fleet.engine(command.engine).update(command.version, keep_cache=keep)
        self.post(EngineUpdated(engine=command.engine, version=command.version))

    def _lend(self, command: Lend) -> None:
        engine = self.fleet.engine(command.engine)
        engine.update(command.version, keep_cache=False)
        self.fleet.open(command.engine)
        self.post(EngineLent(engine=command.engine, version=command.version))

    def _lose(self, engine: EngineId) -> None:
        """Remove a failed engine: its jobs continue on others, its weight load is cancelled."""
        loading = self._loading.pop(engine, None)
        if loading is not None:
            loading.cancel()
        self.fleet.close(engine)
        self.post(EngineLost(engine=engine, message="the simulated engine died"))

    def _regain(self, engine: EngineId) -> None:
        """Return a repaired engine with the newest weights; it serves once it is admitted."""
        version = self.scheduler.weights.published
        back = self.fleet.engine(engine)
        back.update(version, keep_cache=False)
        back.resume()
        pool = self.fleet.members[engine].pool
        self.post(EngineJoined(engine=EngineInfo(id=engine, pool=pool, version=version)))
