"""Routing: which engine completes a request, decided where the request starts.

An episode stays with the engine that holds its prefix. A new one goes to the least loaded engine
of the pool its domain prefers; when that pool has none, to the next pool named, then to any. The
router knows engines, pools, times and lengths; nothing of models or tokens.

A router that learns counts as load not the requests of the moment but the episodes that live on an
engine, each by how busy it is expected to keep it. A new episode goes where one more of its
requests means the least waiting for itself and the others: to the pool that is fast at what its
domain asks for, unless that pool is so full that another delays less. Until the domain and the
preferred pool are known, affinity decides. A pool that has long had no new episode of a domain gets
one, the sooner the less it has had of that domain, so that what is expected of it stays true.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rollart.control.loads import EngineLoad, PoolLoads
from rollart.control.profiling import Answered, Profiler
from rollart.errors import InvariantError
from rollart.types import EngineId, TrajectoryId

_TRY_UNKNOWN, _TRY_KNOWN = 16, 512
"""Episodes of a domain in a row that may pass by a pool it has hardly used, or knows."""

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
    """Send new episodes where they are measured to delay least; until then affinity decides."""

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
    weight: float = 0.0
    """What it adds to its home's load while it lives there."""
    since_s: float = 0.0
    """When its request started."""
    idle_since_s: float | None = None
    """When its last request was completed, if it was and the next has not started."""
    beside: int = 0
    """Requests its home had in flight when its own joined them."""
    tokens: int = 0
    """Length of the prompt in flight."""
    held_tokens: int = 0
    """Tokens of it that its home has seen."""


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

    def pick(
        self, session: TrajectoryId, *, domain: str, now: float = 0.0, tokens: int = 0
    ) -> EngineId:
        """Return the engine for the session's next request and count it as load.

        `tokens` is the length of the whole prompt, what the engine may still hold included.
        """
        stay = self._sessions.get(session)
        if stay is None:
            stay = self._sessions[session] = _Session(domain=domain)
        elif stay.in_flight:
            raise InvariantError(f"session {session} asks again before it was answered")
        home = stay.home
        if home and self._profiler and stay.idle_since_s is not None:
            self._profiler.note_idle(domain, home.pool, now - stay.idle_since_s)
            stay.idle_since_s = None
        if home is None or not home.is_open or not self._rule.sticky or self._is_crowded(home):
            home = self._move(stay)
        stay.in_flight, stay.since_s, stay.tokens = True, now, tokens
        stay.beside = home.requests
        home.requests += 1
        if self._profiler is None:
            home.load = home.requests
        return home.id

    def done(self, session: TrajectoryId, *, now: float, sampled_tokens: int) -> None:
        """Note that the session's request was completed."""
        stay, home = self._land(session)
        if self._profiler is not None:
            answered = Answered(
                domain=stay.domain,
                pool=home.pool,
                new_tokens=max(0, stay.tokens - stay.held_tokens),
                sampled_tokens=sampled_tokens,
                took_s=now - stay.since_s,
                beside=(stay.beside + home.requests) / 2,
            )
            self._profiler.note(answered)
        stay.held_tokens = stay.tokens + sampled_tokens
        stay.idle_since_s = now

    def cancelled(self, session: TrajectoryId) -> None:
        """Note that the session's request was given up; nothing is learned from it."""
        self._land(session)

    def forget(self, session: TrajectoryId) -> EngineId | None:
        """Release a session that ended; return the open engine that holds its prefix."""
        stay = self._sessions.get(session)
        if stay is None:
            return None
        if stay.in_flight:
            self._land(session)
        self._leave(stay)
        del self._sessions[session]
        return stay.home.id if stay.home is not None and stay.home.is_open else None

    def check(self) -> None:
        """Assert that loads are never negative and tell of the sessions there are."""
        stays = self._sessions.values()
        for each in self._engines.values():
            homed = [stay for stay in stays if stay.home is each]
            assert each.requests == sum(stay.in_flight for stay in homed)
            expected = sum(stay.weight for stay in homed) if self._profiler else each.requests
            assert each.load >= 0
            assert abs(each.load - expected) < 1e-6

    def _land(self, session: TrajectoryId) -> tuple[_Session, EngineLoad]:
        stay = self._sessions.get(session)
        if stay is None or stay.home is None or not stay.in_flight:
            raise InvariantError(f"session {session} has no request in flight")
        home = stay.home
        stay.in_flight = False
        home.requests -= 1
        if self._profiler is None:
            self._lighten(home, home.requests)
        return stay, home

    def _move(self, stay: _Session) -> EngineLoad:
        """Give a session a home, or another one."""
        self._leave(stay)
        domain = stay.domain
        home = self._least(domain) if self._profiler is None else self._best_measured(domain)
        if home is not stay.home:
            stay.home, stay.held_tokens = home, 0
        if self._profiler is not None:
            stay.weight = self._profiler.weight(domain, home.pool)
            home.episodes += 1
            home.load += stay.weight
        return home

    def _leave(self, stay: _Session) -> None:
        """Take what a session is expected to bring off its home's load."""
        if stay.home is not None and self._profiler is not None:
            stay.home.episodes -= 1
            rest = max(0.0, stay.home.load - stay.weight) if stay.home.episodes else 0.0
            self._lighten(stay.home, rest)

    def _lighten(self, engine: EngineLoad, load: float) -> None:
        engine.load = load
        if engine.is_open:
            self._pools[engine.pool].fell(engine)

    def _best_measured(self, domain: str) -> EngineLoad:
        """Return the engine for a new episode by what was measured, or one to measure."""
        pools = [name for name, pool in self._pools.items() if pool]
        home = self._untried(domain, pools) or self._least_delay(domain, pools)
        for name in pools:
            self._passed_by[domain, name] = self._passed_by.get((domain, name), 0) + 1
        self._passed_by[domain, home.pool] = 0
        return home

    def _untried(self, domain: str, pools: list[str]) -> EngineLoad | None:
        """Return an engine of a pool a domain has passed by for so long that it is to be tried."""
        assert self._profiler is not None
        for name in pools:
            limit = _TRY_KNOWN if self._profiler.knows_pair(domain, name) else _TRY_UNKNOWN
            if self._passed_by.get((domain, name), 0) >= limit:
                return self._pools[name].least()
        return None

    def _least_delay(self, domain: str, pools: list[str]) -> EngineLoad:
        """Return the engine where an episode delays least, or the preferred one if unknown."""
        profiler, preferred = self._profiler, self._least(domain)
        assert profiler is not None
        if not profiler.knows_domain(domain) or not profiler.knows_pool(preferred.pool):
            return preferred

        def delay(engine: EngineLoad) -> tuple[float, float, int]:
            return profiler.delay_s(domain, engine.pool, engine.load), *_first(engine)

        return min(
            (self._pools[name].least() for name in pools if profiler.knows_pool(name)), key=delay
        )

    def _is_crowded(self, home: EngineLoad) -> bool:
        """Say whether a guest has so little to do that an episode had better move there."""
        return home.pool not in self._guests and any(
            home.load > _CROWDED * (guest.load + 1) for guest in self._least_guests()
        )

    def _least_guests(self) -> list[EngineLoad]:
        return [self._pools[name].least() for name in self._guests if self._pools[name]]

    def _least(self, domain: str) -> EngineLoad:
        """Return the least loaded engine of the first preferred pool that has one, or of any."""
        for name in self._rule.pools(domain):
            pool = self._pools.get(name)
            if pool:
                return min([pool.least(), *self._least_guests()], key=_first)
        everywhere = [pool.least() for pool in self._pools.values() if pool]
        if not everywhere:
            raise InvariantError("a request was routed before any engine joined")
        return min(everywhere, key=_first)


def _first(engine: EngineLoad) -> tuple[float, int]:
    return engine.load, engine.order
