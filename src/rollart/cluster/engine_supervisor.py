"""EngineSupervisor: engines in other processes, made again when they are lost.

Each engine has an id of its own, whatever its place: `engine-0`, then `engine-0.1`. Anyone may
report the loss of an engine (a worker whose request failed, the controller, the watch kept here);
the first report counts and the run learns of it once. An engine that does not answer in time is
lost too, and is ended. An engine outside its preferred pool serves until its successor has joined;
its unfinished turns continue on the others.

An engine that cannot load weights is lost as long as another one serves, or if its version was
pruned from the store: the next one loads a newer version. That ends, because an engine joins only
after it has loaded the newest weights: if none can, the last one raises its error and the run ends.

A lost engine stays in `generators`: a command that was decided before the loss was known may still
be on its way to it, and then fails as with any dead actor.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from rollart.cluster.engine_server import EngineServer, RemoteEngine
from rollart.cluster.supervisor import Place, Role, Supervisor, close_quietly
from rollart.cluster.worker_group import WorkerGroup, WorkerRef
from rollart.errors import ActorDiedError, ActorError, PrunedError, RollartError, UserError
from rollart.events import EngineJoined, EngineLost, Event
from rollart.ports import Handle
from rollart.types import EngineId, EngineInfo, Version

_EVICTION_S = 0.2
"""Time for evicted requests to reach their callers before the engine counts as lost."""
_WATCH_S = 5.0
"""Time between two calls that show whether an engine still answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnedEngine:
    """An engine's process and where it was put.

    Example:
        >>> SpawnedEngine(handle=handle, pool="compute")

    """

    handle: Handle
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSupervisorOptions:
    """What an EngineSupervisor needs of the cluster and the run.

    Example:
        >>> EngineSupervisorOptions(
        ...     spawn=spawner.engine,
        ...     release=resources.release,
        ...     is_better=spawner.is_better,
        ...     newest=lambda: scheduler.weights.published,
        ...     answer_s=120.0,
        ...     warn=progress.warn,
        ... )

    """

    spawn: Callable[[str, EngineId], Awaitable[SpawnedEngine]]
    """Spawns the engine of a place under an id where it fits best now; raises if nowhere."""
    release: Callable[[EngineId], None]
    """Gives back the hardware of an engine."""
    is_better: Callable[[str, EngineId], bool]
    """Says whether the engine of a place could now run where it prefers to."""
    newest: Callable[[], Version]
    """The newest version published."""
    answer_s: float
    """Seconds an engine may take to answer before it counts as lost."""
    warn: Callable[[str], None]


class SupervisedEngine(RemoteEngine):
    """A remote engine that is given up, where it may be, if it cannot load weights."""

    def __init__(
        self,
        handle: Handle,
        *,
        info: EngineInfo,
        lose: Callable[[EngineId, Exception], None],
        is_replaceable: Callable[[EngineId, Exception], bool],
        answer_s: float,
    ) -> None:
        """Take what says whether an engine may be given up for an error, beside the usual."""
        super().__init__(handle, id=info.id, caller="controller", lose=lose, answer_s=answer_s)
        self.info = info
        """The engine as the scheduler knows it when it joins."""
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


class EngineSupervisor:
    """The engines of a run by id."""

    def __init__(
        self,
        options: EngineSupervisorOptions,
        *,
        engines: Iterable[str],
        lent: Iterable[str] = (),
    ) -> None:
        """Take the names of the places; engines in `lent` ones are suspended until they are lent
        by the training hardware they run on.
        """
        self._options = options
        self._lent = tuple(lent)
        role = Role(
            make=self._make,
            end=_end,
            join=self._join,
            retire=self._retire,
            release=lambda name: options.release(EngineId(name)),
            is_better=self._is_better,
            warn=options.warn,
        )
        places = [Place[SupervisedEngine](name=name, title=f"engine {name}") for name in engines]
        places += [Place(name=name, title=f"engine {name}") for name in self._lent]
        self._supervisor = Supervisor(role, places=places)
        self.generators: dict[EngineId, SupervisedEngine] = {}
        """Every engine of the run, lost ones too."""
        self._place_of: dict[EngineId, Place[SupervisedEngine]] = {}
        """The engines that are not lost."""
        self.post: Callable[[Event], None] | None = None
        """Receives which engines join and which are lost."""
        self.close_engine: Callable[[EngineId], None] | None = None
        """Sends no further request to a lost engine."""

    async def start(self) -> None:
        """Make all engines; raises if one cannot be made."""
        await self._supervisor.start()

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines that serve, in the order of their places."""
        engines = [place.actor for place in self._supervisor.places]
        return tuple(engine.info for engine in engines if engine is not None)

    @property
    def group(self) -> WorkerGroup[EngineServer]:
        """The engines that are not lost, to be called all at once."""
        engines = [self.generators[id_] for id_ in self._place_of]
        members = [WorkerRef(handle=each.handle, pool=each.info.pool) for each in engines]
        return WorkerGroup(members=members)

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each engine that answers."""
        asked = zip(list(self._place_of), self.group.spread(EngineServer.stats), strict=True)
        counters: dict[str, dict[str, float]] = {}
        for id_, answer in list(asked):
            with contextlib.suppress(ActorError):  # it died, which the watch will report
                counters[id_] = await answer
        return counters

    def handle_of(self, engine: EngineId) -> Handle | None:
        """Return the handle of an engine; None if it is lost."""
        return self.generators[engine].handle if engine in self._place_of else None

    def lose(self, engine: EngineId, message: str) -> None:
        """Record that an engine is lost, at its first report, and have another made."""
        place = self._drop(engine, message)
        if place is not None and not self._supervisor.is_closed:
            self._options.warn(f"engine {engine} is lost ({message}); its turns go elsewhere")
            self._supervisor.lose(place, self.generators[engine])

    def leave(self, caller: str) -> None:
        """Have every engine drop the requests of a caller that is lost."""
        for id_ in self._place_of:
            self._supervisor.run(_forget_caller(self.generators[id_].handle, caller))

    async def move_home(self) -> bool:
        """Move engines to their preferred pools where they can; say whether all have moved."""
        return await self._supervisor.move_home()

    async def close(self) -> None:
        """Make no further engine; the host ends those there are."""
        self.post = None
        for engine in self.generators.values():
            engine.close()
        await self._supervisor.close()

    def _drop(self, engine: EngineId, message: str) -> Place[SupervisedEngine] | None:
        """Report the loss of an engine; return its place the first time, then None."""
        place = self._place_of.pop(engine, None)
        if place is None:
            return None
        self._options.release(engine)
        self.generators[engine].lost(ConnectionError(message))
        if self.close_engine is not None:
            self.close_engine(engine)
        if self.post is not None:
            self.post(EngineLost(engine=engine, message=message))
        return place

    async def _make(self, place: Place[SupervisedEngine], name: str) -> SupervisedEngine:
        """Make an engine that holds the newest weights."""
        id_, is_lent = EngineId(name), place.name in self._lent
        spawned = await self._options.spawn(place.name, id_)
        info = EngineInfo(id=id_, pool=spawned.pool, version=Version(0), lent=is_lent)
        engine = SupervisedEngine(
            spawned.handle,
            info=info,
            lose=lambda engine, error: self.lose(engine, str(error)),
            is_replaceable=self._is_replaceable,
            answer_s=self._options.answer_s,
        )
        try:
            version, newest = await engine.start(), self._options.newest()
            if version < newest:
                await engine.update(newest)
            if is_lent:
                await engine.suspend()
        except BaseException:
            await _end(engine)
            raise
        engine.info = replace(info, version=max(version, newest))
        return engine

    def _join(self, place: Place[SupervisedEngine], engine: SupervisedEngine) -> None:
        self.generators[engine.id] = engine
        self._place_of[engine.id] = place
        self._supervisor.run(self._watch(engine))
        if self.post is not None:
            self.post(EngineJoined(engine=engine.info))

    async def _retire(self, _place: Place[SupervisedEngine], engine: SupervisedEngine) -> None:
        """Hand an engine's requests back to their callers, then end it."""
        with contextlib.suppress(ActorError):  # it died meanwhile
            await engine.evict()
            await asyncio.sleep(_EVICTION_S)
        self._drop(engine.id, "it has moved to its own pool")
        await _end(engine)

    def _is_better(self, place: Place[SupervisedEngine]) -> bool:
        assert place.actor is not None
        return self._options.is_better(place.name, place.actor.id)

    def _is_replaceable(self, engine: EngineId, error: Exception) -> bool:
        """Say whether an engine that failed to load weights may be given up for another."""
        others = [place for id_, place in self._place_of.items() if id_ != engine]
        is_served = any(place.name not in self._lent for place in others)
        return engine in self._place_of and (is_served or isinstance(error, PrunedError))

    async def _watch(self, engine: SupervisedEngine) -> None:
        """Learn of an engine's end from a call that ends with it, or from its silence."""
        ended = asyncio.ensure_future(engine.handle.call("wait"))
        try:
            while not (await asyncio.wait({ended}, timeout=_WATCH_S))[0]:
                await engine.stats()
            ended.result()
            message = "the engine ended"
        except Exception as error:
            message = str(error)
        finally:
            ended.cancel()
        self.lose(engine.id, message)


async def _forget_caller(handle: Handle, caller: str) -> None:
    with contextlib.suppress(RollartError):  # a dead engine has nothing to forget
        await handle.call("leave", caller)


async def _end(engine: SupervisedEngine) -> None:
    await close_quietly(engine.handle)
