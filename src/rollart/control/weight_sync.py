"""Weight sync: which weights the engines serve, and when that changes.

    Published ─► sync ─► Suspend/Update/Resume per engine ─► served rises
    nothing trains, nothing is ready ─► lend ─► … ─► recall before a step, a sync or the end

`Syncer` is the protocol for one version: suspend, update, resume, per engine, all at once or one
after another. A version published while another is being loaded waits; only the newest waiting one
is loaded. Engines on training hardware take no part: they get their weights with each `Lend`.

Engines come and go. One that joins takes no request before it holds what the others serve, so the
served version never falls; where all must serve the same, one with newer weights waits for the
others. An engine that is lost delays nobody.

`ServedWeights` decides when `Syncer` and `Lender` act. New weights wait for lent engines that are
behind them, and lent engines for a batch; neither delays an attempt.
"""

from collections import deque
from collections.abc import Iterable

from rollart.control.attempts import AttemptTable
from rollart.control.groups import GroupTable
from rollart.control.lending import Lender
from rollart.control.rules import Rules, Syncing
from rollart.control.staleness import Staleness
from rollart.errors import InvariantError
from rollart.events import Admit, Command, Resume, Suspend, Update
from rollart.types import EngineId, EngineInfo, Version


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
        """Continue without an engine; `served` may rise and `active` turn false."""
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
        return [*self._continue_sync(), *self._admit_waiting(newest)]

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
        return [Resume(engine=engine), *self._continue_sync(), *self._admit_waiting(newest)]

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

    def _admit_waiting(self, newest: Version) -> list[Command]:
        """Take in those that waited for the others, as far as these have come."""
        waited, self._ahead = self._ahead, {}
        return [
            command
            for engine, version in waited.items()
            for command in self._catch_up(engine, version, newest=newest)
        ]

    def _continue_sync(self) -> list[Command]:
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


class ServedWeights:
    """The engines' side of a run."""

    def __init__(
        self, rules: Rules, *, bound: Staleness, groups: GroupTable, attempts: AttemptTable
    ) -> None:
        self.published = Version(0)
        """The newest version the weight store holds."""
        self._is_at_once = rules.mode.update == "at_once"
        self.syncer = Syncer(rules.syncing, is_uniform=not self._is_at_once)
        self.lender = Lender(rules.lending, groups_per_step=rules.batching.groups_per_step)
        self._groups = groups
        self._attempts = attempts
        self._groups_per_step = rules.batching.groups_per_step
        self._alpha = bound.alpha
        self._waits_for_batch = rules.syncing.when == "batch" and bound.alpha > 0
        """Whether new weights are loaded only when a batch is ready, or none can come."""

    @property
    def served(self) -> Version:
        """The oldest version any engine serves."""
        return self.syncer.served

    def join(self, engines: Iterable[EngineInfo]) -> None:
        """Learn of engines that serve, or may be lent."""
        engines = tuple(engines)
        self.syncer.join(engines)
        self.lender.join(engines)

    def join_late(self, engine: EngineInfo) -> list[Command]:
        """Take in an engine that was not there when the run started."""
        if engine.lent:
            self.lender.join((engine,))
            return []
        return self.syncer.join_late(engine, newest=self.published)

    def lose(self, engine: EngineId) -> list[Command]:
        """Continue without an engine."""
        self.lender.lose(engine)
        return self.syncer.lose(engine, newest=self.published)

    def updated(self, engine: EngineId, version: Version) -> list[Command]:
        """Answer an engine that has loaded a version."""
        return self.syncer.updated(engine, version, newest=self.published)

    def sync(self, *, may_idle: bool, now: float) -> list[Command]:
        """Load the newest published weights, if they are new and it is time.

        Engines that may be idle need not wait for more work: no groups are to come.
        """
        if self.published <= self.syncer.served or self.syncer.active:
            return []
        admission = self._groups.admission
        commands: list[Command] = []
        if self._is_at_once:
            waits = self._waits_for_batch and admission.has_batch_to_come
            is_time = not waits or self._groups.training or may_idle or self._missing <= 0
            is_behind = self.lender.version < self.published
        else:
            is_rolling = admission.rolling and not may_idle
            is_time = not self._attempts.slots.taken and not is_rolling
            is_behind = True
        if is_time and is_behind:
            commands = self.lender.recall(now)
            is_time = not self.lender.is_away
        return commands + self.syncer.begin(self.published) if is_time else commands

    def lend(self, *, optimizer: Version, now: float) -> list[Command]:
        """Let training hardware serve while nothing trains, nothing is ready and something runs.

        It serves the newest weights published. Those still on their way are awaited, unless no
        engine will serve them before a batch is ready: then the last ones will do while they are
        within the bound. Where weights change only in idle engines, it serves what all serve.
        Where the others moved on meanwhile, because one that lagged was lost, it is taken back.
        """
        if self.lender.is_serving and self.lender.version < self.served:
            return self.lender.recall(now)
        missing = self._missing
        if self._groups.training or missing <= 0 or not self._attempts.slots.taken:
            return []
        behind = optimizer - self.published
        may_lag = self._is_at_once and self._waits_for_batch and behind <= self._alpha
        if behind and not may_lag:
            return []
        version = self.published if self._is_at_once else self.served
        return self.lender.lend(version, missing=missing, now=now)

    @property
    def _missing(self) -> int:
        """How many groups the next batch still lacks."""
        return self._groups_per_step - self._groups.admission.ready
