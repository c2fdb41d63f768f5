"""Routing: which engine completes a request, decided where the request starts.

An episode stays with the engine that holds its prefix. A new one goes to the least loaded engine
of the pool its domain prefers; when that pool has none, to the next pool named, then to any. The
router knows engines, pools and a load number; nothing of models or tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rollart.errors import InvariantError
from rollart.types import EngineId, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How requests find engines."""

    affinity: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Pools each task domain prefers, best first; the domain "default" stands for the others."""
    sticky: bool = True
    """Keep an episode on one engine, so that its prefix is reused."""

    def pools(self, domain: str) -> tuple[str, ...]:
        """Return the pools a domain prefers, best first."""
        return self.affinity.get(domain, self.affinity.get("default", ()))


class Router:
    """Chooses engines for the episodes that start here and knows the load it caused."""

    def __init__(self, rule: Routing, *, engines: Iterable[tuple[EngineId, str]]) -> None:
        self._rule = rule
        self._pools: dict[str, list[EngineId]] = {}
        self._load: dict[EngineId, int] = {}
        self._homes: dict[TrajectoryId, EngineId] = {}
        for engine, pool in engines:
            self._pools.setdefault(pool, []).append(engine)
            self._load[engine] = 0

    def pick(self, session: TrajectoryId, *, domain: str) -> EngineId:
        """Return the engine for the session's next request and count it as load."""
        engine = self._homes.get(session)
        if engine is None or not self._rule.sticky:
            engine = min(self._candidates(domain), key=self._load.__getitem__)
            self._homes[session] = engine
        self._load[engine] += 1
        return engine

    def done(self, engine: EngineId) -> None:
        """Take one request off an engine's load."""
        self._load[engine] -= 1

    def forget(self, session: TrajectoryId) -> EngineId | None:
        """Release a session that ended; return the engine that holds its prefix."""
        return self._homes.pop(session, None)

    def check(self) -> None:
        """Assert that loads are never negative."""
        assert all(load >= 0 for load in self._load.values())

    def _candidates(self, domain: str) -> list[EngineId]:
        for pool in self._rule.pools(domain):
            if self._pools.get(pool):
                return self._pools[pool]
        everywhere = list(self._load)
        if not everywhere:
            raise InvariantError("a request was routed before any engine joined")
        return everywhere
