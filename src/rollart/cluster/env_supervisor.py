"""EnvSupervisor: environment workers in other processes; to the controller they are one `Rollout`.

Slots are dealt to the workers in turn. Invariant: every launch is answered exactly once, by its
worker or, if that is lost, here, as a failure of kind `worker`; the engines are then asked to drop
the worker's requests. While a lost worker is made again its slots go to the others. If there are
none, they go to a spare, which runs beside the driver for this case only, so that no attempt waits
for a process to start; without a spare their launches wait for the first worker. A worker that
cannot be made is tried again for as long as another one works; if none does, the run is given up.

A worker outside its preferred pool is followed by one inside it as soon as that has room: new
attempts go to the new worker, and the old one ends with its last attempt.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rollart.cluster.channel import Channel
from rollart.cluster.env_actor import (
    CloseEngine,
    EngineUnreachable,
    EnvOrder,
    EnvReport,
    LeaveBarrier,
    OpenEngine,
    StartAttempts,
    StopAttempt,
)
from rollart.cluster.supervisor import Place, RestartPolicy, Role, Supervisor, close_quietly
from rollart.errors import UserError
from rollart.events import (
    Event,
    Launch,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.ports import Handle
from rollart.rollout.env_worker import Ends
from rollart.types import EngineId, Failure, SlotId, Trajectory, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSupervisorOptions:
    """What an EnvSupervisor needs of the cluster and the run.

    Example:
        >>> EnvSupervisorOptions(
        ...     spawn=spawner.environments,
        ...     release=resources.release,
        ...     leave=engines.leave,
        ...     is_better=resources.is_better,
        ...     warn=progress.warn,
        ...     give_up=controller.fail,
        ... )

    """

    spawn: Callable[[str, bool], Awaitable[Handle]]
    """Spawns a worker by name where it fits best now; if it is a spare, beside the driver."""
    release: Callable[[str], None]
    """Gives back the hardware of a worker."""
    leave: Callable[[str], None]
    """Has the engines drop the requests of a worker."""
    is_better: Callable[[str], bool]
    """Says whether a worker could now run where it prefers to."""
    warn: Callable[[str], None]
    give_up: Callable[[UserError], None]
    """Ends the run."""
    restarts: RestartPolicy = field(
        default_factory=lambda: RestartPolicy(longest_rest_s=10.0, tries=10)
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    """A worker's process and the attempts it owes an answer for."""

    name: str
    handle: Handle
    channel: Channel[EnvOrder, EnvReport] | None = None
    running: set[TrajectoryId] = field(default_factory=set[TrajectoryId])

    def send(self, order: EnvOrder) -> None:
        assert self.channel is not None
        self.channel.send(order)


class EnvSupervisor:
    """Runs attempts in the environment slots of several workers."""

    def __init__(
        self,
        options: EnvSupervisorOptions,
        *,
        count: int,
        ends: Ends,
        handle_of: Callable[[EngineId], Handle | None],
        on_lost_engine: Callable[[EngineId, str], None],
        spares: int = 0,
        is_lockstep: bool = False,
    ) -> None:
        """Take how many workers and spares to run, where results go and how to reach engines."""
        self._options = options
        self._ends = ends
        self._handle_of = handle_of
        self._on_lost_engine = on_lost_engine
        self._is_lockstep = is_lockstep
        role = Role(
            make=self._make,
            end=_end,
            join=self._join,
            retire=self._retire,
            release=options.release,
            is_better=self._is_better,
            may_give_up=lambda: not self.processes(),
            give_up=self._give_up,
            warn=options.warn,
            restarts=options.restarts,
        )
        self._places = [_place(number) for number in range(count)]
        self._spares = [_place(number, "spare ") for number in range(spares)]
        self._supervisor = Supervisor(role, places=(*self._places, *self._spares))
        self._leaving: list[_Worker] = []
        """Workers whose successors have joined; each ends with its last attempt."""
        self._worker_of: dict[TrajectoryId, _Worker] = {}
        self._waiting: dict[TrajectoryId, Launch] = {}
        """Launches that no worker could take; the next one to join takes them all."""
        self._engines: dict[EngineId, OpenEngine] = {}

    async def start(self) -> None:
        """Make all workers."""
        await self._supervisor.start()

    def launch(self, launches: Sequence[Launch], group: asyncio.TaskGroup) -> None:
        """Start attempts that belong together."""
        del group  # they run in other processes
        self._launch(launches)

    def cancel(self, trajectory: TrajectoryId) -> None:
        """Stop an attempt, if it has not ended by itself."""
        if self._waiting.pop(trajectory, None) is not None:
            self._ends.post(TrajectoryCancelled(id=trajectory, cost=0))
        worker = self._worker_of.get(trajectory)
        if worker is not None:
            worker.send(StopAttempt(id=trajectory))

    def settle(self, event: Event) -> None:
        """Let the other attempts of a barrier continue without one that ended."""
        ended = _ended(event)
        if self._is_lockstep and ended is not None:
            self._send_all(LeaveBarrier(id=ended))

    def open_engine(self, engine: EngineId, pool: str, *, is_guest: bool) -> None:
        """Let every worker send requests to an engine."""
        handle = self._handle_of(engine)
        if handle is None:
            return  # it was lost before it could be opened
        order = OpenEngine(engine=engine, pool=pool, handle=handle, is_guest=is_guest)
        self._engines[engine] = order
        self._send_all(order)

    def close_engine(self, engine: EngineId, *, is_lost: bool = False) -> None:
        """Send an engine no further request; if it is lost, its turns continue on others."""
        if self._engines.pop(engine, None) is not None:
            self._send_all(CloseEngine(engine=engine, is_lost=is_lost))

    def has_engine(self, engine: EngineId) -> bool:
        """Say whether an engine takes requests."""
        return engine in self._engines

    def processes(self) -> list[Handle]:
        """Return the handles of the workers that run."""
        return [worker.handle for worker in self._workers()]

    async def move_home(self) -> bool:
        """Move workers to their preferred pools where they can; say whether all have moved."""
        return await self._supervisor.move_home()

    async def close(self) -> None:
        """Drive no worker any more; the host ends them."""
        for worker in self._workers():
            if worker.channel is not None:
                worker.channel.close()
        await self._supervisor.close()

    def _launch(self, launches: Iterable[Launch]) -> None:
        by_worker: dict[_Worker, list[Launch]] = {}
        for launch in launches:
            worker = self._deal(launch.slot)
            if worker is None:
                self._waiting[launch.id] = launch
            else:
                by_worker.setdefault(worker, []).append(launch)
        for worker, mine in by_worker.items():
            for launch in mine:
                worker.running.add(launch.id)
                self._worker_of[launch.id] = worker
            worker.send(StartAttempts(launches=tuple(mine)))

    def _deal(self, slot: SlotId) -> _Worker | None:
        """Return the worker of a slot: its own, else another one, else a spare."""
        own = self._places[slot % len(self._places)].actor
        if own is not None:
            return own
        there = _actors(self._places) or _actors(self._spares)
        return there[slot % len(there)] if there else None

    async def _make(self, place: Place[_Worker], name: str) -> _Worker:
        handle = await self._options.spawn(name, place in self._spares)
        try:
            await handle.call("start")
        except BaseException:
            await close_quietly(handle)
            raise
        return _Worker(name=name, handle=handle)

    def _join(self, place: Place[_Worker], worker: _Worker) -> None:
        worker.channel = Channel(
            worker.handle,
            name="controller",
            receive=lambda report: self._receive(worker, report),
            is_listening=lambda: True,
            lose=lambda error: self._lose(place, worker, error),
        )
        worker.channel.listen()
        for order in self._engines.values():
            worker.send(order)
        waiting, self._waiting = self._waiting, {}
        self._launch(waiting.values())

    async def _retire(self, _place: Place[_Worker], worker: _Worker) -> None:
        self._leaving.append(worker)
        self._end_if_idle(worker)

    def _end_if_idle(self, worker: _Worker) -> None:
        """End a worker whose successor has joined, if it runs no attempt any more."""
        if worker.running or worker not in self._leaving:
            return
        self._leaving.remove(worker)
        assert worker.channel is not None
        worker.channel.close()
        self._options.release(worker.name)
        self._options.leave(worker.name)
        self._supervisor.run(_end(worker))

    def _is_better(self, place: Place[_Worker]) -> bool:
        assert place.actor is not None
        return place not in self._spares and self._options.is_better(place.actor.name)

    def _receive(self, worker: _Worker, report: EnvReport) -> None:
        if isinstance(report, Trajectory):
            self._ends.put(report)
        elif isinstance(report, EngineUnreachable):
            self._on_lost_engine(report.engine, report.message)
        else:
            ended = _ended(report)
            if ended is not None:
                worker.running.discard(ended)
                self._worker_of.pop(ended, None)
            self._ends.post(report)
            self._end_if_idle(worker)

    def _lose(self, place: Place[_Worker], worker: _Worker, error: Exception) -> None:
        """Answer for a worker that is lost and have another made, unless one has followed it."""
        if self._supervisor.is_closed:
            return
        self._options.release(worker.name)
        self._options.leave(worker.name)
        running, worker.running = sorted(worker.running), set()
        if worker in self._leaving:
            self._leaving.remove(worker)
        else:
            self._options.warn(f"{place.title} is lost ({error}); starting another")
        self._supervisor.lose(place, worker)
        self._fail(running, f"{place.title} is lost: {error}")

    def _fail(self, attempts: Iterable[TrajectoryId], message: str) -> None:
        failure = Failure(kind="worker", message=message)
        for id_ in attempts:
            self._worker_of.pop(id_, None)
            self._ends.post(TrajectoryFailed(id=id_, failure=failure, cost=0))

    def _give_up(self, place: Place[_Worker], error: Exception) -> None:
        self._options.give_up(
            UserError(f"{place.title} cannot be made: {error}; no other one is running")
        )

    def _workers(self) -> list[_Worker]:
        return [*_actors(self._supervisor.places), *self._leaving]

    def _send_all(self, order: EnvOrder) -> None:
        for worker in self._workers():
            worker.send(order)


def _place(number: int, kind: str = "") -> Place[_Worker]:
    name = f"{kind.strip()}{'-' if kind else ''}environments-{number}"
    return Place(name=name, title=f"{kind}environment worker {number}")


def _actors(places: Iterable[Place[_Worker]]) -> list[_Worker]:
    return [place.actor for place in places if place.actor is not None]


async def _end(worker: _Worker) -> None:
    await close_quietly(worker.handle)


def _ended(event: Event) -> TrajectoryId | None:
    match event:
        case TrajectoryFinished():
            return event.info.id
        case TrajectoryFailed() | TrajectoryCancelled():
            return event.id
        case _:
            return None
