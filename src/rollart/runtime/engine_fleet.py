"""EngineFleet: engines elsewhere, replaced when they are gone, moved back when they can be.

    berth ─ spawn ─► engine ─ EngineJoined ─► serves ─ gone ─► EngineLost ─► berth ─ spawn ─► …

A berth is a place for one engine and knows the pools it prefers; each engine in it has an id of
its own. Whoever notices first that an engine is gone says so here, and it is told once. An engine
that had to be put elsewhere is moved as soon as its own pool has room: its turns go on in the other
engines until the new one serves, or wait for it if there are none.

An engine that is gone stays among the `generators`: what was decided before its end was known may
still be on its way to it, and is then refused as by any actor that died.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rollart.events import EngineJoined, EngineLost, Event
from rollart.ports import Handle
from rollart.runtime.bodies import ActorError
from rollart.runtime.remote_engine import RemoteEngine
from rollart.types import EngineId, EngineInfo, Version

_FIRST_REST_S, _LONGEST_REST_S = 0.5, 5.0
_HAND_BACK_S = 0.2
"""Time for what was evicted to reach those who asked, before the engine counts as gone."""


@dataclass(slots=True, kw_only=True, eq=False)
class Berth:
    """A place for one engine."""

    name: str
    is_lent: bool = False
    made: int = 0
    """Engines it has held."""
    engine: RemoteEngine | None = None
    pool: str = ""
    """Where its engine is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """An engine's process and where it was put."""

    handle: Handle
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a fleet stands on."""

    spawn: Callable[[str], Awaitable[Spawned]]
    """Puts an engine of a berth where it fits best now; raises if it fits nowhere."""
    release: Callable[[str], None]
    """Gives back the place of a berth's engine."""
    better: Callable[[str], bool]
    """Says whether a berth's engine could now be where it prefers to be."""
    newest: Callable[[], Version]
    """The newest version published."""
    warn: Callable[[str], None]


class EngineFleet:
    """The engines of a run by id."""

    def __init__(self, ground: Ground, *, berths: list[Berth]) -> None:
        self._ground = ground
        self._berths = berths
        self.generators: dict[EngineId, RemoteEngine] = {}
        """Every engine there is or was."""
        self._berth_of: dict[EngineId, Berth] = {}
        self._versions: dict[EngineId, Version] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.post: Callable[[Event], None] | None = None
        """Where events go once the run has begun."""
        self.close_engine: Callable[[EngineId], None] | None = None
        """Sends an engine that is gone no further request."""

    async def start(self) -> None:
        """Make an engine in every berth; raises if one cannot be made."""
        await asyncio.gather(*(self._fill(berth) for berth in self._berths))

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines there are, in the order of their berths."""
        engines = [berth.engine for berth in self._berths]
        return tuple(self._info(engine.id) for engine in engines if engine is not None)

    @property
    def present(self) -> dict[EngineId, RemoteEngine]:
        """The engines that are there."""
        return {id_: self.generators[id_] for id_ in self._berth_of}

    def handle_of(self, engine: EngineId) -> Handle | None:
        """Return how an engine is called; None if it is gone."""
        return self.generators[engine].handle if engine in self._berth_of else None

    def lose(self, engine: EngineId, message: str) -> None:
        """Take note that an engine is gone, whoever found out, and have another made."""
        berth = self._berth_of.pop(engine, None)
        if berth is None:
            return
        lost = self.generators[engine]
        berth.engine = None
        self._ground.release(berth.name)
        lost.lost(ConnectionError(message))
        if self.close_engine is not None:
            self.close_engine(engine)
        if self.post is not None:
            self._ground.warn(f"engine {engine} is gone; its turns go on elsewhere")
            self.post(EngineLost(engine=engine, message=message))
            self._run(self._replace(berth, lost.handle))

    async def mend(self) -> None:
        """Move engines that are not where they prefer to be, if they now can."""
        for berth in self._berths:
            if berth.engine is not None and self._ground.better(berth.name):
                old = berth.engine
                self._ground.warn(f"engine {old.id} moves from {berth.pool} to where it belongs")
                with contextlib.suppress(ActorError):  # it is gone by itself
                    await old.evict()
                    await asyncio.sleep(_HAND_BACK_S)
                self.lose(old.id, "it moves to its own pool")

    async def close(self) -> None:
        """Replace nothing more; whoever made the engines ends them."""
        self.post = None
        for task in self._tasks:
            task.cancel()
        for engine in self.generators.values():
            engine.close()

    async def _fill(self, berth: Berth) -> EngineInfo:
        """Make an engine, with the newest weights there are."""
        spawned = await self._ground.spawn(berth.name)
        id_ = EngineId(f"{berth.name}.{berth.made}" if berth.made else berth.name)
        berth.made += 1
        engine = RemoteEngine(
            spawned.handle,
            id=id_,
            caller="controller",
            lose=lambda engine, error: self.lose(engine, str(error)),
        )
        try:
            version: Version = await spawned.handle.call("start")
            newest = self._ground.newest()
            if version < newest:
                await engine.update(newest)
                version = newest
        except BaseException:
            await _end(spawned.handle)
            raise
        berth.pool = spawned.pool
        berth.engine = self.generators[id_] = engine
        self._berth_of[id_] = berth
        self._versions[id_] = version
        self._run(self._watch(engine))
        return self._info(id_)

    async def _watch(self, engine: RemoteEngine) -> None:
        """Learn of an engine's end from a call that ends with it."""
        try:
            await engine.handle.call("wait")
            message = "the engine ended"
        except Exception as error:
            message = str(error)
        self.lose(engine.id, message)

    async def _replace(self, berth: Berth, lost: Handle) -> None:
        await _end(lost)  # what is broken but alive would keep its place
        rest_s, said = _FIRST_REST_S, ""
        while True:
            try:
                info = await self._fill(berth)
            except Exception as error:
                self._ground.release(berth.name)
                if said != (said := f"engine {berth.name} cannot be made now: {error}"):
                    self._ground.warn(said)
            else:
                if self.post is not None:
                    self.post(EngineJoined(engine=info))
                return
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, _LONGEST_REST_S)

    def _info(self, engine: EngineId) -> EngineInfo:
        berth = self._berth_of[engine]
        return EngineInfo(
            id=engine, pool=berth.pool, version=self._versions[engine], lent=berth.is_lent
        )

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _end(handle: Handle) -> None:
    with contextlib.suppress(Exception):
        await handle.close()
