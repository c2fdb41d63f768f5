"""EnvServer: an environment worker that is driven by calls from elsewhere.

Calls bring orders (launch, cancel, engines that come and go) and take what has happened since:
events, the trajectories they tell of, and engines found to be gone. A trajectory is told before
the event that ends it, so the buffer has it when the scheduler hears of it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollart.events import Event, Launch
from rollart.ports import Handle
from rollart.runtime.env_worker import Ends, EnvWorker
from rollart.runtime.exchange import Mailbox
from rollart.runtime.remote_engine import RemoteEngine
from rollart.runtime.switchboard import Switchboard
from rollart.types import EngineId, Trajectory, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start attempts that belong together."""

    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop an attempt."""

    id: TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Let the others go on without an attempt that ended."""

    id: TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Let an engine take requests."""

    engine: EngineId
    pool: str
    handle: Handle
    is_guest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shut:
    """Send an engine no further request; if it is gone, give back what it had."""

    engine: EngineId
    is_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """An engine could not be reached."""

    engine: EngineId
    message: str


Order = Start | Stop | Leave | Open | Shut
Report = Event | Trajectory | Lost

MakeWorker = Callable[[Ends], tuple[EnvWorker, Switchboard]]


class EnvServer:
    """Runs an EnvWorker and its switchboard."""

    def __init__(self, make: MakeWorker, *, name: str) -> None:
        """Take what makes the worker, and the name its engines know it by."""
        self._make = make
        self._name = name
        self._mailbox: Mailbox[Report]
        self._worker: EnvWorker
        self._switchboard: Switchboard
        self._engines: dict[EngineId, RemoteEngine] = {}
        self._tasks: asyncio.TaskGroup
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to serve."""
        self._mailbox = Mailbox()
        self._worker, self._switchboard = self._make(
            Ends(put=self._mailbox.put, post=self._mailbox.put)
        )
        ready = asyncio.Event()
        self._serving = asyncio.create_task(self._serve(ready))
        await ready.wait()

    async def exchange(self, caller: str, number: int, orders: Sequence[Order]) -> list[Report]:
        """Carry orders out; return what has happened since."""
        del caller  # there is one
        for order in orders:
            self._obey(order)
        return await self._mailbox.collect(number)

    async def wait(self) -> None:
        """Return, or raise, when the worker is no more: whoever calls learns of its end."""
        assert self._serving is not None
        await asyncio.shield(self._serving)

    async def close(self) -> None:
        """Stop every attempt and close every environment."""
        for engine in self._engines.values():
            engine.close()
        if self._serving is not None:
            self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
            self._worker.close()

    async def _serve(self, ready: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            ready.set()
            await asyncio.Event().wait()

    def _obey(self, order: Order) -> None:
        match order:
            case Start():
                self._worker.launch(order.launches, self._tasks)
            case Stop():
                self._worker.cancel(order.id)
            case Leave():
                self._worker.leave(order.id)
            case Open():
                engine = RemoteEngine(
                    order.handle, id=order.engine, caller=self._name, lose=self._lose
                )
                self._engines[order.engine] = engine
                self._switchboard.add(order.engine, engine)
                self._switchboard.open(order.engine, order.pool, is_guest=order.is_guest)
            case Shut():
                self._switchboard.close(order.engine)
                engine = self._engines.get(order.engine)
                if order.is_lost and engine is not None:
                    engine.lost(ConnectionError("the engine is gone"))

    def _lose(self, engine: EngineId, error: Exception) -> None:
        self._switchboard.close(engine)
        self._mailbox.put(Lost(engine=engine, message=f"{type(error).__name__}: {error}"))
