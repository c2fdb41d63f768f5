"""Syncing: moving engines to published weights, all at once or one after another.

`Syncer` is the protocol for one version: suspend, update, resume, per engine. A version published
while another is being loaded waits; only the newest waiting one is ever loaded. Engines on training
hardware take no part: they get their weights with each `Lend`.

Engines come and go. One that joins takes no request before it holds what the others serve, so the
version served never falls; where all are to serve the same, one that holds newer weights waits for
the others. One that is lost holds nobody up.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rollart.errors import InvariantError
from rollart.events import Admit, Command, Resume, Suspend, Update
from rollart.types import EngineId, EngineInfo, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncing:
    """How engines change weights."""

    order: Literal["all", "rolling"] = "all"
    """Suspend all engines together, or one after another so that the others go on serving."""
    when: Literal["published", "batch"] = "published"
    """Load new weights as soon as they are there, or (the paper's order) when a batch is taken."""
    keep_kv: bool = False
    """Keep cached keys and values of the old weights instead of recomputing them."""


class Syncer:
    """Drives every engine to the newest published version."""

    def __init__(self, rule: Syncing, *, is_uniform: bool = False) -> None:
        self._rule = rule
        self._is_uniform = is_uniform
        """Whether all engines are to serve the same version."""
        self.served = Version(0)
        """The oldest version any engine serves that is not lent."""
        self._held: dict[EngineId, Version] = {}
        self._behind: set[EngineId] = set()
        """Engines that hold the version served: until the last has moved on, it stays that."""
        self._target: Version | None = None
        self._waiting: deque[EngineId] = deque()
        self._loading: set[EngineId] = set()
        self._late: set[EngineId] = set()
        """Engines that joined behind the version served: they load it before they serve."""
        self._ahead: dict[EngineId, Version] = {}
        """Those of them that hold newer weights, and wait for the others."""

    def join(self, engines: Iterable[EngineInfo]) -> None:
        """Learn of the engines that always serve and the versions they hold."""
        self._held.update({engine.id: engine.version for engine in engines if not engine.lent})
        if not self._held:
            raise InvariantError("a run needs an engine that serves while the trainer trains")
        self._note_served()

    def join_late(self, engine: EngineInfo, *, newest: Version) -> list[Command]:
        """Take in an engine during the run: at once if it holds what the others serve.

        If there are no others it is to hold the newest version published.
        """
        self._late.add(engine.id)
        return self._catch_up(engine.id, engine.version, newest=newest)

    def lose(self, engine: EngineId, *, newest: Version) -> list[Command]:
        """Go on without an engine; `served` may rise and `active` turn false."""
        self._late.discard(engine)
        self._ahead.pop(engine, None)
        if self._held.pop(engine, None) is None:
            return []
        self._behind.discard(engine)
        if not self._behind and self._held:
            self._note_served()
        self._loading.discard(engine)
        if engine in self._waiting:
            self._waiting.remove(engine)
        return [*self._go_on(), *self._reach(newest)]

    @property
    def active(self) -> bool:
        """Whether a version is being loaded."""
        return self._target is not None

    def begin(self, version: Version) -> list[Command]:
        """Start loading a version into every engine that is behind it."""
        behind = [engine for engine, held in self._held.items() if held < version]
        if not behind:
            return []
        self._target = version
        self._waiting = deque(behind)
        return self._suspend_next()

    def suspended(self, engine: EngineId) -> list[Command]:
        """Answer an engine that has stopped, unless it was lost meanwhile."""
        if engine not in self._loading:
            return []
        assert self._target is not None
        return [Update(engine=engine, version=self._target)]

    def updated(self, engine: EngineId, version: Version, *, newest: Version) -> list[Command]:
        """Answer an engine that has loaded the version; `active` turns false after the last.

        One that was lost meanwhile is not answered.
        """
        if engine in self._late:
            return self._catch_up(engine, version, newest=newest)
        if engine not in self._held:
            return []
        self._held[engine] = version
        self._behind.discard(engine)
        if not self._behind:
            self._note_served()
        self._loading.discard(engine)
        return [Resume(engine=engine), *self._go_on(), *self._reach(newest)]

    def check(self) -> None:
        """Assert that the protocol's state is whole."""
        assert self.served == min(self._held.values(), default=self.served)
        assert self.active == bool(self._loading or self._waiting)
        assert not self._late & self._held.keys()
        assert self._ahead.keys() <= self._late
        assert not self._is_uniform or self.active or len(set(self._held.values())) <= 1
        assert not self._loading & set(self._waiting)
        assert self._rule.order == "rolling" or not self._waiting
        assert self._rule.order == "all" or len(self._loading) <= 1

    def _catch_up(self, engine: EngineId, version: Version, *, newest: Version) -> list[Command]:
        """Let a late engine serve, or load what the others do: they may have moved on again."""
        wanted = self.served if self._held else newest
        if version < wanted:
            return [Update(engine=engine, version=self._target or wanted)]
        if self._is_uniform and self._held and version > wanted:
            self._ahead[engine] = version
            return []
        self._late.discard(engine)
        self._held[engine] = version
        self._note_served()
        return [Admit(engine=engine)]

    def _reach(self, newest: Version) -> list[Command]:
        """Take in those that waited for the others, as far as these have come."""
        waited, self._ahead = self._ahead, {}
        return [
            command
            for engine, version in waited.items()
            for command in self._catch_up(engine, version, newest=newest)
        ]

    def _go_on(self) -> list[Command]:
        """Suspend the next engines in turn, or end when all have loaded."""
        if self._loading:
            return []
        if self._waiting:
            return self._suspend_next()
        self._target = None
        return []

    def _note_served(self) -> None:
        self.served = min(self._held.values())
        self._behind = {engine for engine, held in self._held.items() if held == self.served}

    def _suspend_next(self) -> list[Command]:
        count = len(self._waiting) if self._rule.order == "all" else 1
        chosen = [self._waiting.popleft() for _ in range(count)]
        self._loading.update(chosen)
        return [Suspend(engine=engine) for engine in chosen]
