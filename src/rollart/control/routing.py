"""Routing: which engine completes a request, decided where the request starts.

An episode stays with the engine that holds its prefix. A new one goes to the least loaded engine
of the pool its domain prefers; when that pool has none, to the next pool named, then to any. The
router knows engines, pools, times and lengths; nothing of models or contents.

With `learn` every request goes where it is measured to cause the least waiting for itself and the
others (`latency_model`): to the engine that holds its prefix, unless reading it again elsewhere
delays less; to the pool that is fast for its domain, unless that pool is so full that another is
faster. Affinity decides until the domain is known on the pool it prefers, and another pool must be
clearly better. A pool that has long had no new episode of a domain gets one, so that what is
expected of it stays true.

`PoolLoads` finds the least loaded engine of a pool. A heap lists each engine under a load it had. A
load that falls is listed again at once; one that has grown is noticed when its old entry comes
first. So every engine is listed at no more than its load, and an entry that comes first and is
still true is the least. Outdated entries are dropped when met, or all together when they outnumber
the engines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from rollart.control.latency_model import Answered, Profiler
from rollart.errors import InvariantError
from rollart.types import EngineId, TrajectoryId


@dataclass(slots=True, kw_only=True, eq=False)
class EngineLoad:
    """An open engine and what it is busy with."""

    id: EngineId
    pool: str
    order: int
    """When it joined: among the equally loaded the first goes first."""
    load: int = 0
    """Requests in flight."""
    listed: int = 0
    """The load it is listed under."""
    is_open: bool = True


class PoolLoads:
    """The open engines of one pool."""

    def __init__(self) -> None:
        self._engines: dict[int, EngineLoad] = {}
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Return how many engines are open."""
        return len(self._engines)

    def join(self, engine: EngineLoad) -> None:
        """Take in an engine."""
        self._engines[engine.order] = engine
        self._list(engine)

    def leave(self, engine: EngineLoad) -> None:
        """Take out an engine."""
        del self._engines[engine.order]

    def fell(self, engine: EngineLoad) -> None:
        """Note that an engine's load has fallen."""
        if engine.load < engine.listed:
            self._list(engine)

    def least(self) -> EngineLoad:
        """Return the least loaded engine, the first to join among equals."""
        while True:
            listed, order = self._heap[0]
            engine = self._engines.get(order)
            if engine is None or listed != engine.listed:
                heappop(self._heap)
            elif listed == engine.load:
                return engine
            else:
                engine.listed = engine.load
                heapreplace(self._heap, (engine.load, order))

    def _list(self, engine: EngineLoad) -> None:
        engine.listed = engine.load
        heappush(self._heap, (engine.load, engine.order))
        if len(self._heap) > 2 * len(self._engines) + 16:
            for each in self._engines.values():
                each.listed = each.load
            self._heap = [(each.load, each.order) for each in self._engines.values()]
            heapify(self._heap)


_TRY_UNKNOWN, _TRY_KNOWN = 16, 512
"""Episodes of a domain in a row that may pass by a pool it has hardly used, or knows."""

_CLEARLY = 0.9
"""The share of the preferred pool's delay that another pool must stay below."""

_CROWDED = 2.0
"""How many times a guest's load makes reading an episode's prefix again worth its while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How requests find engines."""

    affinity: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Pools each task domain prefers, best first; the domain "default" stands for the others."""
    sticky: bool = True
    """Keep an episode on one engine, so that its prefix is reused."""
    learn: bool = False
    """Send requests where they are measured to delay least; until that is known, as above."""

    def pools(self, domain: str) -> tuple[str, ...]:
        """Return the pools a domain prefers, best first."""
        return self.affinity.get(domain, self.affinity.get("default", ()))


@dataclass(slots=True, kw_only=True, eq=False)
class _Session:
    """An episode as the router knows it."""

    domain: str
    home: EngineLoad | None = None
    in_flight: bool = False
    """Whether a request of it is at its home."""
    since_s: float = 0.0
    """When its request started."""
    beside: int = 0
    """Requests its home had in flight when its own joined them."""
    length: int = 0
    """Length of the prompt in flight."""
    held: int = 0
    """How much of it its home has seen."""


class Router:
    """Chooses engines for the episodes that start here and knows the load it caused."""

    def __init__(self, rule: Routing, *, engines: Iterable[tuple[EngineId, str]]) -> None:
        self._rule = rule
        self._profiler = Profiler() if rule.learn else None
        self._engines: dict[EngineId, EngineLoad] = {}
        self._pools: dict[str, PoolLoads] = {}
        self._passed_by: dict[tuple[str, str], int] = {}
        """New episodes of a domain since a pool last got one, by domain and pool."""
        self._sessions: dict[TrajectoryId, _Session] = {}
        self._guests: set[str] = set()
        """Pools whose engines are there for a while, for any domain."""
        self._joined = 0
        for engine, pool in engines:
            self.open(engine, pool)

    def open(self, engine: EngineId, pool: str, *, is_guest: bool = False) -> None:
        """Let an engine take requests.

        A guest is there for a while: any domain may use it, and it relieves crowded engines of
        episodes that live there already.
        """
        if is_guest:
            self._guests.add(pool)
        if engine in self._engines:
            raise InvariantError(f"engine {engine} is open already")
        joining = EngineLoad(id=engine, pool=pool, order=self._joined)
        self._joined += 1
        self._engines[engine] = joining
        self._pools.setdefault(pool, PoolLoads()).join(joining)

    def close(self, engine: EngineId) -> None:
        """Send an engine nothing more; its episodes find another home at their next request."""
        leaving = self._engines.pop(engine)
        leaving.is_open = False
        self._pools[leaving.pool].leave(leaving)

    @property
    def has_engines(self) -> bool:
        """Whether any engine takes requests."""
        return bool(self._engines)

    def is_open(self, engine: EngineId) -> bool:
        """Say whether an engine takes requests."""
        return engine in self._engines

    def pick(
        self, session: TrajectoryId, *, domain: str, now: float = 0.0, length: int = 0
    ) -> EngineId:
        """Return the engine for the session's next request and count it as load.

        `length` is the length of the whole prompt, what the engine may still hold included.
        """
        stay = self._sessions.get(session)
        if stay is None:
            stay = self._sessions[session] = _Session(domain=domain)
        elif stay.in_flight:
            raise InvariantError(f"session {session} asks again before it was answered")
        home = self._home(stay, length=length)
        if home is not stay.home:
            stay.home, stay.held = home, 0
        stay.in_flight, stay.since_s, stay.length = True, now, length
        stay.beside = home.load
        home.load += 1
        return home.id

    def done(self, session: TrajectoryId, *, now: float, sampled: int) -> None:
        """Note that the session's request was completed."""
        stay, home = self._land(session)
        if self._profiler is not None:
            held = min(stay.length, stay.held)
            answered = Answered(
                domain=stay.domain,
                pool=home.pool,
                new=stay.length - held,
                held=held,
                sampled=sampled,
                took_s=max(0.0, now - stay.since_s),
                beside=(stay.beside + home.load) / 2,
            )
            self._profiler.note(answered)
        stay.held = stay.length + sampled

    def cancelled(self, session: TrajectoryId) -> None:
        """Note that the session's request was given up; nothing is learned from it."""
        self._land(session)

    def home(self, session: TrajectoryId) -> EngineId:
        """Return the engine a session's last request went to."""
        stay = self._sessions.get(session)
        if stay is None or stay.home is None:
            raise InvariantError(f"session {session} has asked nothing yet")
        return stay.home.id

    def forget(self, session: TrajectoryId) -> EngineId | None:
        """Release a session that ended; return the open engine that holds its prefix."""
        stay = self._sessions.get(session)
        if stay is None:
            return None
        if stay.in_flight:
            self._land(session)
        del self._sessions[session]
        return stay.home.id if stay.home is not None and stay.home.is_open else None

    def check(self) -> None:
        """Assert that loads are never negative and agree with the sessions."""
        stays = self._sessions.values()
        for each in self._engines.values():
            homed = [stay for stay in stays if stay.home is each]
            assert each.load == sum(stay.in_flight for stay in homed)

    def _land(self, session: TrajectoryId) -> tuple[_Session, EngineLoad]:
        stay = self._sessions.get(session)
        if stay is None or stay.home is None or not stay.in_flight:
            raise InvariantError(f"session {session} has no request in flight")
        home = stay.home
        stay.in_flight = False
        home.load -= 1
        if home.is_open:
            self._pools[home.pool].fell(home)
        return stay, home

    def _home(self, stay: _Session, *, length: int) -> EngineLoad:
        """Return the engine for a session's next request."""
        if self._profiler is not None:
            is_new = stay.home is None
            untried = self._untried(self._profiler, stay.domain) if is_new else None
            measured = untried or self._least_delay(self._profiler, stay, length=length)
            home = measured or self._least_loaded(stay)
            if is_new:
                self._pass_by(stay.domain, chosen=home.pool)
            return home
        return self._least_loaded(stay)

    def _least_loaded(self, stay: _Session) -> EngineLoad:
        """Return a session's home, or a new one where it is preferred, has none or is crowded."""
        home = stay.home
        if home is None or not home.is_open or not self._rule.sticky or self._is_crowded(home):
            return self._least(stay.domain)
        return home

    def _pass_by(self, domain: str, *, chosen: str) -> None:
        """Count a new episode of a domain for the pools that did not get it."""
        for name, pool in self._pools.items():
            if pool:
                self._passed_by[domain, name] = self._passed_by.get((domain, name), 0) + 1
        self._passed_by[domain, chosen] = 0

    def _untried(self, profiler: Profiler, domain: str) -> EngineLoad | None:
        """Return an engine of a pool a domain has passed by for so long that it is to be tried."""
        for name, pool in self._pools.items():
            limit = _TRY_KNOWN if profiler.knows(domain, name) else _TRY_UNKNOWN
            if pool and self._passed_by.get((domain, name), 0) >= limit:
                return pool.least()
        return None

    def _least_delay(self, profiler: Profiler, stay: _Session, *, length: int) -> EngineLoad | None:
        """Return the engine where a request delays least; None while that is not known."""
        preferred = self._least(stay.domain, guests=False)
        if not profiler.knows(stay.domain, preferred.pool):
            return None
        best, least_s = preferred, inf
        for engine in self._candidates(stay):
            pool, held = engine.pool, min(length, stay.held) if engine is stay.home else 0
            is_equal = pool == preferred.pool or pool in self._guests
            is_known = profiler.knows(stay.domain, pool)
            if not is_known and not is_equal:
                continue
            delay_s = profiler.delay_s(
                stay.domain,
                pool if is_known else preferred.pool,
                new=length - held,
                held=held,
                beside=engine.load,
            )
            if not is_equal:
                delay_s /= _CLEARLY
            if delay_s < least_s:
                best, least_s = engine, delay_s
        return best

    def _candidates(self, stay: _Session) -> list[EngineLoad]:
        """Return a session's home, if it is open, and the least loaded engine of each pool."""
        least = [pool.least() for pool in self._pools.values() if pool]
        return [stay.home, *least] if stay.home is not None and stay.home.is_open else least

    def _is_crowded(self, home: EngineLoad) -> bool:
        """Say whether a guest has so little to do that an episode had better move there."""
        if not self._guests or home.pool in self._guests:
            return False
        for name in self._guests:
            pool = self._pools[name]
            if pool and home.load > _CROWDED * (pool.least().load + 1):
                return True
        return False

    def _least_guests(self) -> list[EngineLoad]:
        return [self._pools[name].least() for name in self._guests if self._pools[name]]

    def _least(self, domain: str, *, guests: bool = True) -> EngineLoad:
        """Return the least loaded engine of the first preferred pool that has one, or of any."""
        for name in self._rule.pools(domain):
            pool = self._pools.get(name)
            if pool:
                return min([pool.least(), *(self._least_guests() if guests else ())], key=_first)
        everywhere = [pool.least() for pool in self._pools.values() if pool]
        if not everywhere:
            raise InvariantError("a request was routed before any engine joined")
        return min(everywhere, key=_first)


def _first(engine: EngineLoad) -> tuple[float, int]:
    return engine.load, engine.order
