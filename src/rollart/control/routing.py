"""Routing: which engine completes a request, decided where the request starts.

An episode stays with the engine that holds its prefix. A new one goes to the least loaded engine
of the pool its domain prefers; when that pool has none, to the next pool named, then to any. The
router knows engines, pools, times and lengths; nothing of models or tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rollart.control.loads import EngineLoad, PoolLoads
from rollart.errors import InvariantError
from rollart.types import EngineId, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How requests find engines."""

    affinity: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Pools each task domain prefers, best first; the domain "default" stands for the others."""
    sticky: bool = True
    """Keep an episode on one engine, so that its prefix is reused."""
    learn: bool = False
    """Send new episodes where measured speed promises most; affinity decides until it is known."""

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


class Router:
    """Chooses engines for the episodes that start here and knows the load it caused."""

    def __init__(self, rule: Routing, *, engines: Iterable[tuple[EngineId, str]]) -> None:
        self._rule = rule
        self._engines: dict[EngineId, EngineLoad] = {}
        self._pools: dict[str, PoolLoads] = {}
        self._sessions: dict[TrajectoryId, _Session] = {}
        self._joined = 0
        for engine, pool in engines:
            self.open(engine, pool)

    def open(self, engine: EngineId, pool: str) -> None:
        """Let an engine take requests."""
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
        if home is None or not home.is_open or not self._rule.sticky:
            home = stay.home = self._least(domain)
        stay.in_flight = True
        home.requests += 1
        home.load += 1
        return home.id

    def done(self, session: TrajectoryId, *, now: float, sampled_tokens: int) -> None:
        """Note that the session's request was completed."""
        self._land(session)

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
        del self._sessions[session]
        return stay.home.id if stay.home is not None and stay.home.is_open else None

    def check(self) -> None:
        """Assert that loads are never negative."""
        assert all(each.load >= 0 for each in self._engines.values())

    def _land(self, session: TrajectoryId) -> _Session:
        stay = self._sessions.get(session)
        if stay is None or stay.home is None or not stay.in_flight:
            raise InvariantError(f"session {session} has no request in flight")
        home = stay.home
        stay.in_flight = False
        home.requests -= 1
        home.load -= 1
        if home.is_open:
            self._pools[home.pool].fell(home)
        return stay

    def _least(self, domain: str) -> EngineLoad:
        """Return the least loaded engine of the first preferred pool that has one, or of any."""
        for name in self._rule.pools(domain):
            pool = self._pools.get(name)
            if pool:
                return pool.least()
        everywhere = [pool.least() for pool in self._pools.values() if pool]
        if not everywhere:
            raise InvariantError("a request was routed before any engine joined")
        return min(everywhere, key=_first)


def _first(engine: EngineLoad) -> tuple[float, int]:
    return engine.load, engine.order
