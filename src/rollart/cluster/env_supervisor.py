"""RemoteEnvWorkers: environment workers elsewhere, as the controller sees them: as one.

Slots are dealt to the workers in turn. Every launch is answered exactly once: by the worker, or,
if that is gone, here, as a failure of infrastructure; the engines are told to drop what it had
asked of them. While another is being made in its place, its slots are dealt to the others; where
there are none, to a spare, which is there for that alone, so that nothing waits for a process to
start; and without a spare launches fail at once, so the scheduler rests their slots. A worker that
cannot be made is tried for as long as others run; if there are none, the run is given up in the
end.

A worker that had to be put elsewhere is followed by one in its own pool as soon as that has room:
new attempts go to the new one, the old one ends when those it has have ended.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from rollart.cluster.channel import Channel
from rollart.cluster.env_actor import (
    EnvActorRef,
    Leave,
    Lost,
    Open,
    Order,
    Report,
    Shut,
    StartAttempts,
    StopAttempt,
)
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
from rollart.rollout.tasks import end_tasks, together
from rollart.types import EngineId, Failure, SlotId, Trajectory, TrajectoryId

_FIRST_REST_S, _LONGEST_REST_S = 0.5, 10.0
_TRIES = 10
"""Tries at one worker, with no other there, after which the run is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvWorkerSettings:
    """What environment workers stand on."""

    spawn: Callable[[str, bool], Awaitable[Handle]]
    """Makes the worker of a name where it fits best now; if it is a spare, beside the driver."""
    release: Callable[[str], None]
    """Gives back the place of a worker that is gone."""
    leave: Callable[[str], None]
    """Tells the engines that a worker of this name asks nothing more."""
    better: Callable[[str], bool]
    """Says whether a worker could now be where it prefers to be."""
    warn: Callable[[str], None]
    give_up: Callable[[UserError], None]
    """Ends the run."""


class EnvSupervisor:
    """Runs attempts in environment slots of several workers."""

    def __init__(
        self,
        grounds: EnvWorkerSettings,
        *,
        count: int,
        ends: Ends,
        handle_of: Callable[[EngineId], Handle | None],
        on_lost_engine: Callable[[EngineId, str], None],
        spares: int = 0,
        is_lockstep: bool = False,
    ) -> None:
        """Take how many workers and spares there are, where results go, how engines are called."""
        self._grounds = grounds
        self._ends = ends
        self._handle_of = handle_of
        self._on_lost_engine = on_lost_engine
        self._is_lockstep = is_lockstep
        self._places = [EnvActorRef(number=number, is_spare=False) for number in range(count)]
        self._spares = [EnvActorRef(number=number, is_spare=True) for number in range(spares)]
        self._leaving: list[EnvActorRef] = []
        self._place_of: dict[TrajectoryId, EnvActorRef] = {}
        self._engines: dict[EngineId, Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self) -> None:
        """Make all workers."""
        await together(self._open(place) for place in (*self._places, *self._spares))

    def launch(self, launches: Sequence[Launch], group: asyncio.TaskGroup) -> None:
        """Start attempts that belong together."""
        del group  # they run elsewhere
        by_place: dict[EnvActorRef, list[Launch]] = {}
        for launch in launches:
            by_place.setdefault(self._deal(launch.slot), []).append(launch)
        for place, mine in by_place.items():
            for launch in mine:
                place.running.add(launch.id)
                self._place_of[launch.id] = place
            if place.line is None:
                self._fail(place, "the environment worker is gone; another is being made")
            else:
                place.line.send(StartAttempts(launches=tuple(mine)))

    def cancel(self, trajectory: TrajectoryId) -> None:
        """Stop an attempt, if it has not ended by itself."""
        place = self._place_of.get(trajectory)
        if place is not None and place.line is not None:
            place.line.send(StopAttempt(id=trajectory))

    def settle(self, event: Event) -> None:
        """Let the others go on without an attempt that ended."""
        ended = _ended(event)
        if self._is_lockstep and ended is not None:
            self._tell_all(Leave(id=ended))

    def open_engine(self, engine: EngineId, pool: str, *, is_guest: bool) -> None:
        """Let an engine take requests of every worker."""
        handle = self._handle_of(engine)
        if handle is None:
            return  # it was lost before it could be opened
        order = Open(engine=engine, pool=pool, handle=handle, is_guest=is_guest)
        self._engines[engine] = order
        self._tell_all(order)

    def close_engine(self, engine: EngineId, *, is_lost: bool = False) -> None:
        """Send an engine no further request; if it is gone, what it had goes on elsewhere."""
        if self._engines.pop(engine, None) is not None:
            self._tell_all(Shut(engine=engine, is_lost=is_lost))

    def has_engine(self, engine: EngineId) -> bool:
        """Say whether an engine takes requests."""
        return engine in self._engines

    def processes(self) -> list[Handle]:
        """Return the workers that are there."""
        return [place.handle for place in self._all() if place.handle is not None]

    async def mend(self) -> bool:
        """Let workers be followed by others where they would rather be; say whether all could."""
        there = [place for place in self._places if place.line is not None]
        away = [place for place in there if self._grounds.better(place.name)]
        return all(await asyncio.gather(*(self._move(place) for place in away)))

    async def close(self) -> None:
        """Drive no worker any more; whoever made them ends them."""
        self._is_closed = True
        for place in self._all():
            if place.line is not None:
                place.line.close()
        await end_tasks(self._tasks)

    def _deal(self, slot: SlotId) -> EnvActorRef:
        """Return the place of a slot: its own; while nobody is there another, or a spare."""
        place = self._places[slot % len(self._places)]
        if place.line is None:
            there = [each for each in self._places if each.line is not None]
            there = there or [each for each in self._spares if each.line is not None]
            return there[slot % len(there)] if there else place
        return place

    async def _open(self, place: EnvActorRef) -> None:
        place.rename()
        handle = await self._grounds.spawn(place.name, place.is_spare)
        try:
            await handle.call("start")
        except BaseException:
            await _end(handle)
            raise
        place.handle = handle
        place.line = Channel(
            handle,
            name="controller",
            hear=lambda report: self._hear(place, report),
            is_listening=lambda: True,
            lose=lambda error: self._lose(place, error),
        )
        place.line.listen()
        for order in self._engines.values():
            place.line.send(order)

    async def _move(self, old: EnvActorRef) -> bool:
        """Put a place after another one and let that end in its own time; say whether it could."""
        self._grounds.warn(f"{old.title} moves to where it belongs")
        new = EnvActorRef(number=old.number, is_spare=False, made=old.made)
        old.is_left = True
        try:
            await self._open(new)
        except Exception as error:
            self._grounds.release(new.name)
            self._grounds.warn(f"{old.title} cannot move: {error}")
            old.is_left, old.made = False, new.made
            if old.line is None:  # it was lost meanwhile
                self._run(self._replace(old, None))
            return False
        self._places[self._places.index(old)] = new
        self._leaving.append(old)
        self._leave(old)
        return True

    def _leave(self, place: EnvActorRef) -> None:
        """End a worker that another has followed, if it has nothing to do any more."""
        if place.running or place not in self._leaving:
            return
        self._leaving.remove(place)
        if place.line is not None:
            place.line.close()
            self._grounds.release(place.name)
            self._grounds.leave(place.name)
            self._run(_end(place.handle))

    def _hear(self, place: EnvActorRef, report: Report) -> None:
        if isinstance(report, Trajectory):
            self._ends.put(report)
        elif isinstance(report, Lost):
            self._on_lost_engine(report.engine, report.message)
        else:
            ended = _ended(report)
            if ended is not None:
                place.running.discard(ended)
                self._place_of.pop(ended, None)
            self._ends.post(report)
            self._leave(place)

    def _lose(self, place: EnvActorRef, error: Exception) -> None:
        lost, place.line, place.handle = place.handle, None, None
        if self._is_closed:
            return
        self._grounds.release(place.name)
        self._grounds.leave(place.name)
        self._fail(place, f"{place.title} is gone: {error}")
        if place.is_left:
            self._leave(place)
            self._run(_end(lost))
            return
        self._grounds.warn(f"{place.title} is gone ({error}); making another")
        self._run(self._replace(place, lost))

    def _fail(self, place: EnvActorRef, message: str) -> None:
        """Answer for every attempt a place still owes an answer for."""
        failure = Failure(kind="worker", message=message)
        for id_ in sorted(place.running):
            del self._place_of[id_]
            self._ends.post(TrajectoryFailed(id=id_, failure=failure, cost=0))
        place.running.clear()

    async def _replace(self, place: EnvActorRef, lost: Handle | None) -> None:
        await _end(lost)  # what is broken but alive must not go on
        rest_s, tries, said = _FIRST_REST_S, 0, ""
        while True:
            try:
                return await self._open(place)
            except Exception as error:
                tries += 1
                why = f"{place.title} could not be made: {error}"
                self._grounds.release(place.name)
            if tries >= _TRIES and not self.processes():
                return self._grounds.give_up(UserError(f"{why}; no other is left"))
            if why != said:
                self._grounds.warn(why)
            said = why
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, _LONGEST_REST_S)

    def _all(self) -> list[EnvActorRef]:
        return [*self._places, *self._spares, *self._leaving]

    def _tell_all(self, order: Order) -> None:
        for place in self._all():
            if place.line is not None:
                place.line.send(order)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _end(handle: Handle | None) -> None:
    if handle is not None:
        with contextlib.suppress(Exception):
            await handle.close()


def _ended(event: Event) -> TrajectoryId | None:
    match event:
        case TrajectoryFinished():
            return event.info.id
        case TrajectoryFailed() | TrajectoryCancelled():
            return event.id
        case _:
            return None
