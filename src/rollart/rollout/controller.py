"""Controller: the scheduler's live driver, and the optimizer step under way.

    inbox ─► Scheduler.handle ─► log, observers ─► execute each command
      ▲                                               │
      └── its result is the next event ◄──────────────┘

Launches and cancels go to the environment worker. Training, publishing, scoring and weight syncs
run as tasks beside the rollout; the loop awaits none of them. Only the scheduler's window decides
how much runs, so the inbox stays short.

A run that fails is saved as the trainer is. The step under way (`Stepping`) therefore outlives the
tasks of the run: the trainer finishes it in any case, and the scheduler takes its result in before
the run ends, unless the trainer itself failed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, assert_never, cast

from rollart.clock import Clock
from rollart.control.scheduler import Scheduler
from rollart.errors import ActorDiedError, ClusterError, UserError
from rollart.events import (
    Adapt,
    Admit,
    Cancel,
    Command,
    Drop,
    EngineJoined,
    EngineLent,
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
    StopRequested,
    Suspend,
    Train,
    Update,
    Wake,
    Woke,
)
from rollart.ports import Array, Generator
from rollart.rollout.buffer import Buffer
from rollart.rollout.scoring import Scorer, Scoring
from rollart.training_ports import RemoteTrainer
from rollart.types import EngineId, EngineInfo, StepReport, Trajectory, TrajectoryId

_PATIENCE_S = 600.0
"""Longest a run that failed waits for the step under way."""


class Stepping:
    """At most one optimizer step, until the scheduler knows of its end."""

    def __init__(self) -> None:
        self._step: asyncio.Task[StepReport] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the trainer may be further than the scheduler knows."""
        return self._step is not None

    def begin(self, step: Coroutine[Any, Any, StepReport]) -> None:
        """Begin a step."""
        self._step = asyncio.create_task(step)

    async def ended(self) -> StepFinished:
        """Wait for the end of the step in progress; cancelling the wait does not cancel it."""
        assert self._step is not None
        return _finished(await asyncio.shield(self._step))

    def settle(self) -> None:
        """Take note that the scheduler knows of the step's end."""
        self._step = None

    async def finish(self) -> StepFinished | None:
        """Wait for the end of the step, if there is one; None if it did not end well."""
        if self._step is None:
            return None
        (done, _) = await asyncio.wait({self._step}, timeout=_PATIENCE_S)
        ended = [step for step in done if not step.cancelled() and step.exception() is None]
        return _finished(ended[0].result()) if ended else None

    def cancel(self) -> None:
        """Wait no more for the step."""
        if self._step is not None:
            self._step.cancel()


def _finished(report: StepReport) -> StepFinished:
    return StepFinished(version=report.version, metrics=report.metrics)


T = TypeVar("T")
Observer = Callable[[float, Event, Sequence[Command]], object]
"""Sees each event with its time and what the scheduler made of it."""


class Rollout(Protocol):
    """What runs attempts, here or elsewhere; each launch is answered by exactly one event."""

    def launch(self, launches: Sequence[Launch], group: asyncio.TaskGroup) -> None:
        """Start attempts that belong together."""
        ...

    def cancel(self, trajectory: TrajectoryId) -> None:
        """Stop an attempt, if it has not ended by itself."""
        ...

    def settle(self, event: Event) -> None:
        """Take note that the scheduler knows of an event."""
        ...

    def open_engine(self, engine: EngineId, pool: str, *, is_guest: bool) -> None:
        """Let an engine take requests."""
        ...

    def close_engine(self, engine: EngineId) -> None:
        """Send an engine no further request."""
        ...

    async def close(self) -> None:
        """Run nothing more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the controller drives."""

    worker: Rollout
    generators: Mapping[EngineId, Generator]
    trainer: RemoteTrainer
    buffer: Buffer
    encode: Callable[[Sequence[Sequence[Trajectory]]], Mapping[str, Array]]
    score: Scorer
    on_train: Callable[[Sequence[Sequence[Trajectory]]], None]
    """Sees each batch as it leaves the buffer."""
    after_event: Callable[[Event, asyncio.TaskGroup], None]
    """Called after the scheduler took an event in, before what follows from it is begun."""
    before_event: Callable[[Event], Awaitable[None]] | None = None
    """Awaited before the scheduler takes an event in: nothing that follows from it has begun."""
    lose_engine: Callable[[EngineId, str], None] | None = None
    """Called with an engine that was lost, to post `EngineLost` once; None if none can be lost."""


class Controller:
    """Turns commands into work and work into events."""

    def __init__(
        self, scheduler: Scheduler, *, clock: Clock, observers: Sequence[Observer] = ()
    ) -> None:
        self.scheduler = scheduler
        self._parts: Parts
        self._scoring: Scoring
        self._pools: dict[EngineId, str] = {}
        self._clock = clock
        self._observers = observers
        self._inbox: asyncio.Queue[Event | UserError] = asyncio.Queue()
        self._halted: str | None = None
        self._timers: set[asyncio.Task[None]] = set()
        self.stepping = Stepping()

    def post(self, event: Event) -> None:
        """Queue an event."""
        self._inbox.put_nowait(event)

    def fail(self, error: UserError) -> None:
        """End the run with an error, at once: it cannot continue."""
        self._inbox.put_nowait(error)

    def stop(self) -> None:
        """Ask the run to end now, with a checkpoint."""
        self.post(StopRequested())

    async def run(self, parts: Parts, *, engines: tuple[EngineInfo, ...], slots: int) -> None:
        """Drive the run to its end; raises UserError if the scheduler gives up."""
        self._parts = parts
        self._pools = {engine.id: engine.pool for engine in engines}
        self.post(RunStarted(engines=engines, slots=slots))
        try:
            try:
                await self._drive()
            finally:
                await parts.worker.close()
        except BaseExceptionGroup as group:
            error = _root(group)
            if isinstance(error, UserError) and not isinstance(error, ClusterError):
                finished = await self.stepping.finish()
                if finished is not None:
                    self._take_in(finished)
            raise error from group
        finally:
            self.stepping.cancel()
        if self._halted is not None:
            raise UserError(self._halted)

    async def _drive(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            parts = self._parts
            self._scoring = Scoring(parts.score, buffer=parts.buffer, post=self.post, tasks=tasks)
            while not self.scheduler.done:
                event = await self._inbox.get()
                if isinstance(event, UserError):
                    raise event
                if isinstance(event, EngineJoined):
                    self._pools[event.engine.id] = event.engine.pool
                if parts.before_event is not None:
                    await parts.before_event(event)
                commands = self._take_in(event)
                parts.after_event(event, tasks)
                self._execute(commands, tasks)
                parts.worker.settle(event)
            self._scoring.close()
            for timer in self._timers:
                timer.cancel()

    def _take_in(self, event: Event) -> list[Command]:
        now = self._clock.now()
        if isinstance(event, StepFinished):
            self.stepping.settle()
        commands = self.scheduler.handle(event, now)
        for observer in self._observers:
            observer(now, event, commands)
        return commands

    def _execute(  # noqa: PLR0912
        self, commands: Sequence[Command], tasks: asyncio.TaskGroup
    ) -> None:
        launches = [command for command in commands if isinstance(command, Launch)]
        if launches:
            self._parts.worker.launch(launches, tasks)
        for command in commands:
            match command:
                case Launch() | Adapt():
                    pass
                case Cancel():
                    self._parts.worker.cancel(command.id)
                case Drop():
                    self._parts.buffer.drop(command.ids)
                case Halt():
                    self._halted = command.message
                case Train():
                    # Taken now: a later event may move the versions its age is counted by.
                    groups = self._parts.buffer.take(command.groups)
                    self.stepping.begin(self._train(groups))
                    tasks.create_task(self._tell_step())
                case Publish():
                    tasks.create_task(self._publish(command))
                case Score():
                    self._scoring.begin(command)
                case Suspend() | Update() | Resume():
                    tasks.create_task(self._at_engine(command.engine, self._sync, command))
                case Admit():
                    pool = self._pools[command.engine]
                    self._parts.worker.open_engine(command.engine, pool, is_guest=False)
                case Lend():
                    tasks.create_task(self._at_engine(command.engine, self._lend, command))
                case Recall():
                    # Closed now: a turn that starts before it is evicted would only come back.
                    self._parts.worker.close_engine(command.engine)
                    tasks.create_task(self._at_engine(command.engine, self._evict, command))
                case Wake():
                    timer = tasks.create_task(self._wake(command))
                    self._timers.add(timer)
                    timer.add_done_callback(self._timers.discard)
                case _ as never:
                    assert_never(never)

    async def _train(self, groups: list[list[Trajectory]]) -> StepReport:
        self._parts.on_train(groups)
        # Beside the event loop, which every environment needs: a batch may hold millions of tokens.
        batch = await asyncio.to_thread(self._parts.encode, groups)
        return await self._parts.trainer.step(batch)

    async def _tell_step(self) -> None:
        self.post(await self.stepping.ended())

    async def _publish(self, command: Publish) -> None:
        start_s = self._clock.now()
        await self._parts.trainer.publish()
        push_s = self._clock.now() - start_s
        self.post(Published(version=command.version, metrics={"push_s": push_s}))

    async def _at_engine(
        self, engine: EngineId, work: Callable[[T], Awaitable[None]], command: T
    ) -> None:
        """Call an engine; one that does not answer is reported as lost."""
        try:
            await work(command)
        except ActorDiedError as error:
            if self._parts.lose_engine is None:
                raise
            self._parts.lose_engine(engine, str(error))

    async def _sync(self, command: Suspend | Update | Resume) -> None:
        generator = self._parts.generators[command.engine]
        match command:
            case Suspend():
                await generator.suspend()
                self.post(EngineSuspended(engine=command.engine))
            case Update():
                took = await generator.update(command.version)
                self.post(
                    EngineUpdated(engine=command.engine, version=command.version, metrics=took)
                )
            case Resume():
                await generator.resume()

    async def _lend(self, command: Lend) -> None:
        generator = self._parts.generators[command.engine]
        await generator.update(command.version)
        await generator.resume()
        pool = self._pools[command.engine]
        self._parts.worker.open_engine(command.engine, pool, is_guest=True)
        self.post(EngineLent(engine=command.engine, version=command.version))

    async def _evict(self, command: Recall) -> None:
        await self._parts.generators[command.engine].evict()
        self.post(EngineRecalled(engine=command.engine))

    async def _wake(self, command: Wake) -> None:
        await self._clock.sleep(max(0.0, command.at_s - self._clock.now()))
        self.post(Woke(at_s=command.at_s))


def _root(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what broke a run: the user's mistake if there is one, else the first error."""
    errors = list(_leaves(group))
    return next((error for error in errors if isinstance(error, UserError)), errors[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(cast("BaseExceptionGroup[BaseException]", error))
        else:
            yield error
