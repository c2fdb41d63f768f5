"""Serving: which weights the engines serve, and when that changes.

    Published ─► sync ─► Suspend/Update/Resume per engine ─► served moves on
    nothing trains, nothing is ready ─► lend ─► … ─► recall before a step, a sync or the end

The protocols are the `Syncer`'s and the `Lender`'s; here is when each of them acts. New weights
wait for lent engines that are behind them, and lent engines for a batch: neither ever holds up an
attempt.
"""

from collections.abc import Iterable

from rollart.control.cohort import Cohort
from rollart.control.flights import Flights
from rollart.control.lending import Lender
from rollart.control.rules import Rules
from rollart.control.staleness import Staleness
from rollart.control.syncing import Syncer
from rollart.events import Command
from rollart.types import EngineId, EngineInfo, Version


class Serving:
    """The engines' side of a run."""

    def __init__(self, rules: Rules, *, bound: Staleness, cohort: Cohort, flights: Flights) -> None:
        self.published = Version(0)
        """The newest version the weight store holds."""
        self._is_at_once = rules.mode.update == "at_once"
        self.syncer = Syncer(rules.syncing, is_uniform=not self._is_at_once)
        self.lender = Lender(rules.lending, groups_per_step=rules.batching.groups_per_step)
        self._cohort = cohort
        self._flights = flights
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
        """Go on without an engine."""
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
        admission = self._cohort.admission
        commands: list[Command] = []
        if self._is_at_once:
            waits = self._waits_for_batch and admission.has_batch_to_come
            is_time = not waits or self._cohort.training or may_idle or self._missing <= 0
            is_behind = self.lender.version < self.published
        else:
            is_rolling = admission.rolling and not may_idle
            is_time = not self._flights.slots.taken and not is_rolling
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
        if self._cohort.training or missing <= 0 or not self._flights.slots.taken:
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
        return self._groups_per_step - self._cohort.admission.ready
