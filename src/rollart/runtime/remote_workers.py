"""RemoteEnvWorkers: environment workers elsewhere, as the controller sees them: as one.

Slots are dealt to the workers in turn. Every launch is answered exactly once: by the worker, or,
if that is gone, here, as a failure of infrastructure. While another is being made in its place, its
slots are dealt to the others; where there are none, launches fail at once, so the scheduler rests
their slots. A worker that cannot be made is tried for as long as others run; if there are none, the
run is given up in the end.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from rollart.errors import UserError
from rollart.events import (
    Event,
    Launch,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.ports import Handle
from rollart.runtime.env_server import Leave, Lost, Open, Order, Report, Shut, Start, Stop
from rollart.runtime.env_worker import Ends
from rollart.runtime.exchange import Line
from rollart.types import EngineId, Failure, SlotId, Trajectory, TrajectoryId

_FIRST_REST_S, _LONGEST_REST_S = 0.5, 10.0
_TRIES = 10
"""Tries at one worker, with no other there, after which the run is given up."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Place:
    """Where one worker sits; its successor sits there too."""

    number: int
    handle: Handle | None = None
    line: Line[Order, Report] | None = None
    running: set[TrajectoryId] = field(default_factory=set[TrajectoryId])


class RemoteEnvWorkers:
    """Runs attempts in environment slots of several workers."""

    def __init__(
        self,
        spawn: Callable[[int], Awaitable[Handle]],
        *,
        count: int,
        ends: Ends,
        handle_of: Callable[[EngineId], Handle | None],
        on_lost_engine: Callable[[EngineId, str], None],
        warn: Callable[[str], None],
        give_up: Callable[[UserError], None],
        is_lockstep: bool = False,
    ) -> None:
        """Take what makes the worker of a number, where results go, and what ends the run."""
        self._spawn = spawn
        self._ends = ends
        self._handle_of = handle_of
        self._on_lost_engine = on_lost_engine
        self._warn = warn
        self._give_up = give_up
        self._is_lockstep = is_lockstep
        self._places = [_Place(number=number) for number in range(count)]
        self._place_of: dict[TrajectoryId, _Place] = {}
        self._engines: dict[EngineId, Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self) -> None:
        """Make all workers."""
        await asyncio.gather(*(self._open(place) for place in self._places))

    def launch(self, launches: Sequence[Launch], group: asyncio.TaskGroup) -> None:
        """Start attempts that belong together."""
        del group  # they run elsewhere
        by_place: dict[int, list[Launch]] = {}
        for launch in launches:
            by_place.setdefault(self._deal(launch.slot).number, []).append(launch)
        for number, mine in by_place.items():
            place = self._places[number]
            for launch in mine:
                place.running.add(launch.id)
                self._place_of[launch.id] = place
            if place.line is None:
                self._fail(place, "the environment worker is gone; another is being made")
            else:
                place.line.send(Start(launches=tuple(mine)))

    def cancel(self, trajectory: TrajectoryId) -> None:
        """Stop an attempt, if it has not ended by itself."""
        place = self._place_of.get(trajectory)
        if place is not None and place.line is not None:
            place.line.send(Stop(id=trajectory))

    def settle(self, event: Event) -> None:
        """Let the others go on without an attempt that ended."""
        if not self._is_lockstep:
            return
        ended = _ended(event)
        line = self._places[0].line
        if ended is not None and line is not None:
            line.send(Leave(id=ended))

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
        return [place.handle for place in self._places if place.handle is not None]

    def close(self) -> None:
        """Drive no worker any more; whoever made them ends them."""
        self._is_closed = True
        for place in self._places:
            if place.line is not None:
                place.line.close()
        for task in self._tasks:
            task.cancel()

    def _deal(self, slot: SlotId) -> _Place:
        """Return the place of a slot: its own, or while nobody is there, another."""
        place = self._places[slot % len(self._places)]
        if place.line is None:
            there = [each for each in self._places if each.line is not None]
            return there[slot % len(there)] if there else place
        return place

    async def _open(self, place: _Place) -> None:
        handle = await self._spawn(place.number)
        try:
            await handle.call("start")
        except BaseException:
            with contextlib.suppress(Exception):
                await handle.close()
            raise
        place.handle = handle
        place.line = Line(
            handle,
            name="controller",
            hear=lambda report: self._hear(place, report),
            is_listening=lambda: True,
            lose=lambda error: self._lose(place, error),
        )
        place.line.listen()
        for order in self._engines.values():
            place.line.send(order)

    def _hear(self, place: _Place, report: Report) -> None:
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

    def _lose(self, place: _Place, error: Exception) -> None:
        lost, place.line, place.handle = place.handle, None, None
        if self._is_closed:
            return
        self._warn(f"environment worker {place.number} is gone ({error}); making another")
        self._fail(place, f"environment worker {place.number} is gone: {error}")
        task = asyncio.get_running_loop().create_task(self._replace(place, lost))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fail(self, place: _Place, message: str) -> None:
        """Answer for every attempt a place still owes an answer for."""
        failure = Failure(kind="worker", message=message)
        for id_ in sorted(place.running):
            del self._place_of[id_]
            self._ends.post(TrajectoryFailed(id=id_, failure=failure, sampled_tokens=0))
        place.running.clear()

    async def _replace(self, place: _Place, lost: Handle | None) -> None:
        if lost is not None:
            with contextlib.suppress(Exception):  # what is broken but alive must not go on
                await lost.close()
        rest_s, tries, said = _FIRST_REST_S, 0, ""
        while True:
            try:
                return await self._open(place)
            except Exception as error:
                tries += 1
                why = f"environment worker {place.number} could not be made: {error}"
            if tries >= _TRIES and not self.processes():
                return self._give_up(UserError(f"{why}; no other is left"))
            if why != said:
                self._warn(why)
            said = why
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, _LONGEST_REST_S)

    def _tell_all(self, order: Order) -> None:
        for place in self._places:
            if place.line is not None:
                place.line.send(order)


def _ended(event: Event) -> TrajectoryId | None:
    match event:
        case TrajectoryFinished():
            return event.info.id
        case TrajectoryFailed() | TrajectoryCancelled():
            return event.id
        case _:
            return None
