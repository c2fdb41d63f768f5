"""EngineFleet: engines elsewhere, replaced when they are gone, moved back when they can be.

    berth ─ spawn ─► engine ─ EngineJoined ─► serves ─ gone ─► EngineLost ─► berth ─ spawn ─► …

A berth is a place for one engine and knows the pools it prefers; each engine in it has an id of
its own. Whoever notices first that an engine is gone says so here, and it is told once; one that
does not answer for long counts as gone, and is ended. An engine that had to be put elsewhere is
moved as soon as its own pool has room: it serves until there is another in its berth, and its turns
go on in that one or the others.

One that cannot load weights counts as gone too while another is there, or if they are stored no
longer: its successor is asked for newer ones. That ends, for an engine joins only when it has
loaded the newest weights: where none can load any, the last one tells why, and the run ends.

An engine that is gone stays among the `generators`: what was decided before its end was known may
still be on its way to it, and is then refused as by any actor that died.

FleetEngine: an engine elsewhere that is made again when it cannot load weights.

To whoever drives it, one that cannot is gone, so that another is made in its place. Where none
stands in for it, what went wrong is told as it is: made again it would meet the same.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from rollart.cluster.engine_actor import EngineServer, RemoteEngine
from rollart.cluster.local_host import ActorDiedError, ActorError
from rollart.cluster.worker_group import WorkerGroup, WorkerRef
from rollart.errors import PrunedError, RollartError, UserError
from rollart.events import EngineJoined, EngineLost, Event
from rollart.ports import Handle
from rollart.rollout.tasks import end_tasks, together
from rollart.types import EngineId, EngineInfo, Version


class FleetEngine(RemoteEngine):
    """Forwards requests to an engine of a fleet."""

    def __init__(
        self,
        handle: Handle,
        *,
        id: EngineId,  # noqa: A002
        lose: Callable[[EngineId, Exception], None],
        is_replaceable: Callable[[EngineId, Exception], bool],
        patience_s: float,
    ) -> None:
        """Take what says whether it may be given up for an error, beside what any engine takes."""
        super().__init__(handle, id=id, caller="controller", lose=lose, patience_s=patience_s)
        self._is_replaceable = is_replaceable

    async def update(self, version: Version) -> Mapping[str, float]:
        """Fetch and load published weights while suspended; return what that took."""
        try:
            return await super().update(version)
        except ActorDiedError:
            raise
        except (UserError, ActorError) as error:
            if not self._is_replaceable(self.id, error):
                raise
            why = str(error).split("\n", 1)[0]
            raise ActorDiedError(f"it cannot load version {version}: {why}") from error


_FIRST_REST_S, _LONGEST_REST_S = 0.5, 5.0
_HAND_BACK_S = 0.2
"""Time for what was evicted to reach those who asked, before the engine counts as gone."""
_LOOK_S = 5.0
"""Time between two calls that show whether an engine still answers."""


@dataclass(slots=True, kw_only=True, eq=False)
class EnginePlace:
    """A place for one engine."""

    name: str
    is_lent: bool = False
    """Whether it is on training hardware: its engine stands still until it is lent."""
    made: int = 0
    """Engines it has held."""
    engine: RemoteEngine | None = None
    pool: str = ""
    """Where its engine is."""
    is_moving: bool = False
    """Whether another engine is being made while this one serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """An engine's process and where it was put."""

    handle: Handle
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """What a fleet stands on."""

    spawn: Callable[[str, EngineId], Awaitable[Spawned]]
    """Puts a berth's engine of an id where it fits best now; raises if it fits nowhere."""
    release: Callable[[EngineId], None]
    """Gives back the place of an engine."""
    better: Callable[[str, EngineId], bool]
    """Says whether a berth's engine could now be where it prefers to be."""
    newest: Callable[[], Version]
    """The newest version published."""
    patience_s: float
    """Seconds an engine may take to answer before it counts as gone."""
    warn: Callable[[str], None]


class EngineSupervisor:
    """The engines of a run by id."""

    def __init__(self, ground: FleetSettings, *, berths: list[EnginePlace]) -> None:
        self._ground = ground
        self._berths = berths
        self.generators: dict[EngineId, RemoteEngine] = {}
        """Every engine there is or was."""
        self._berth_of: dict[EngineId, EnginePlace] = {}
        self._versions: dict[EngineId, Version] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.post: Callable[[Event], None] | None = None
        """Hears which engines join and which are gone."""
        self.close_engine: Callable[[EngineId], None] | None = None
        """Sends an engine that is gone no further request."""

    async def start(self) -> None:
        """Make an engine in every berth; raises if one cannot be made."""
        await together(self._fill(berth) for berth in self._berths)

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines there are, in the order of their berths."""
        engines = [berth.engine for berth in self._berths]
        return tuple(self._info(engine.id) for engine in engines if engine is not None)

    @property
    def cluster(self) -> WorkerGroup[EngineServer]:
        """The engines that are there, to be called all at once."""
        return WorkerGroup(
            members=[
                WorkerRef(handle=self.generators[id_].handle, pool=berth.pool)
                for id_, berth in self._berth_of.items()
            ]
        )

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each engine that is there and answers."""
        asked = dict(
            zip(list(self._berth_of), self.cluster.spread(EngineServer.stats), strict=True)
        )
        counters: dict[str, dict[str, float]] = {}
        for id_, answer in asked.items():
            with contextlib.suppress(ActorError):  # it is gone, which whoever watches it will say
                counters[id_] = await answer
        return counters

    def handle_of(self, engine: EngineId) -> Handle | None:
        """Return how an engine is called; None if it is gone."""
        return self.generators[engine].handle if engine in self._berth_of else None

    def lose(self, engine: EngineId, message: str) -> None:
        """Take note that an engine is gone, whoever found out, and have another made."""
        berth = self._drop(engine, message)
        if berth is None or self._is_closed:
            return
        self._ground.warn(f"engine {engine} is gone ({message}); its turns go on elsewhere")
        if berth.engine is None and not berth.is_moving:
            self._run(self._replace(berth, self.generators[engine].handle))

    def leave(self, caller: str) -> None:
        """Have every engine drop what a caller that is gone has asked of it."""
        for id_ in self._berth_of:
            self._run(_dismiss(self.generators[id_].handle, caller))

    async def mend(self) -> bool:
        """Move engines that are not where they prefer to be; say whether all could that should."""
        away = [berth for berth in self._berths if self._is_away(berth)]
        return all(await asyncio.gather(*(self._move(berth) for berth in away)))

    async def close(self) -> None:
        """Replace nothing more; whoever made the engines ends them."""
        self._is_closed, self.post = True, None
        for engine in self.generators.values():
            engine.close()
        await end_tasks(self._tasks)

    def _drop(self, engine: EngineId, message: str) -> EnginePlace | None:
        """Take an engine off the list and tell of its end; return its berth, once."""
        berth = self._berth_of.pop(engine, None)
        if berth is None:
            return None
        lost = self.generators[engine]
        if berth.engine is lost:
            berth.engine = None
        self._ground.release(engine)
        lost.lost(ConnectionError(message))
        if self.close_engine is not None:
            self.close_engine(engine)
        if self.post is not None:
            self.post(EngineLost(engine=engine, message=message))
        return berth

    def _is_away(self, berth: EnginePlace) -> bool:
        return berth.engine is not None and self._ground.better(berth.name, berth.engine.id)

    async def _move(self, berth: EnginePlace) -> bool:
        """Put another engine in a berth and end the one there; say whether that could be."""
        old = berth.engine
        assert old is not None
        self._ground.warn(f"engine {old.id} moves from {berth.pool} to where it belongs")
        berth.is_moving = True
        try:
            info = await self._fill(berth)
        except Exception as error:
            self._ground.warn(f"engine {old.id} cannot move: {error}")
            if berth.engine is None:  # it was lost meanwhile
                self._run(self._replace(berth, old.handle))
            return False
        finally:
            berth.is_moving = False
        if self.post is not None:
            self.post(EngineJoined(engine=info))
        with contextlib.suppress(ActorError):  # it is gone by itself
            await old.evict()
            await asyncio.sleep(_HAND_BACK_S)
        self._drop(old.id, "it has moved to its own pool")
        await _end(old.handle)
        return True

    async def _fill(self, berth: EnginePlace) -> EngineInfo:
        """Make an engine, with the newest weights there are."""
        id_ = EngineId(f"{berth.name}.{berth.made}" if berth.made else berth.name)
        try:
            spawned = await self._ground.spawn(berth.name, id_)
            berth.made += 1
            return await self._start(berth, id_, spawned)
        except BaseException:
            self._ground.release(id_)
            raise

    async def _start(self, berth: EnginePlace, id_: EngineId, spawned: Spawned) -> EngineInfo:
        """Let an engine that was made begin, as its berth's."""
        engine = FleetEngine(
            spawned.handle,
            id=id_,
            lose=lambda engine, error: self.lose(engine, str(error)),
            is_replaceable=self._is_replaceable,
            patience_s=self._ground.patience_s,
        )
        try:
            version = await engine.start()
            newest = self._ground.newest()
            if version < newest:
                await engine.update(newest)
                version = newest
            if berth.is_lent:
                await engine.suspend()
        except BaseException:
            await _end(spawned.handle)
            raise
        berth.pool = spawned.pool
        berth.engine = self.generators[id_] = engine
        self._berth_of[id_] = berth
        self._versions[id_] = version
        self._run(self._watch(engine))
        return self._info(id_)

    def _is_replaceable(self, engine: EngineId, error: Exception) -> bool:
        """Say whether another may be made in place of an engine that failed to load weights."""
        others = [berth for id_, berth in self._berth_of.items() if id_ != engine]
        may_pass = isinstance(error, PrunedError) or any(not berth.is_lent for berth in others)
        return may_pass and engine in self._berth_of

    async def _watch(self, engine: RemoteEngine) -> None:
        """Learn of an engine's end from a call that ends with it, or from its silence."""
        ended = asyncio.ensure_future(engine.handle.call("wait"))
        try:
            while not (await asyncio.wait({ended}, timeout=_LOOK_S))[0]:
                await engine.stats()
            ended.result()
            message = "the engine ended"
        except Exception as error:
            message = str(error)
        finally:
            ended.cancel()
        self.lose(engine.id, message)

    async def _replace(self, berth: EnginePlace, lost: Handle) -> None:
        await _end(lost)  # what is broken but alive would keep its place
        rest_s, said = _FIRST_REST_S, ""
        while True:
            try:
                info = await self._fill(berth)
            except Exception as error:
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


async def _dismiss(handle: Handle, caller: str) -> None:
    with contextlib.suppress(RollartError):  # an engine that is gone has dropped it all
        await handle.call("leave", caller)


async def _end(handle: Handle) -> None:
    with contextlib.suppress(Exception):
        await handle.close()
