"""Loads: the engines of a pool, the least loaded of them at hand.

A heap lists each engine under a load it had. A load that falls is listed anew at once; one that
has grown is found out when its old entry comes first. So every engine is always listed at no more
than its load, and an entry that comes first and is still true is the least. Entries overtaken by a
lower one are dropped when met, or all together when they outnumber the engines.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from rollart.types import EngineId


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
