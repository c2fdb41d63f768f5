"""World: everything that determines a simulated run, engine outages included.

Two simulations of equal worlds give equal events: every duration and every script follows from the
world and its seeds, never from the machine. Each engine's failure times are drawn from a seed of
its own, so they do not depend on anything else that happens in the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Annotated, Protocol

from rollart.config.simulation import ScoringOptions
from rollart.constraints import AtLeast, check_fields
from rollart.control.routing import Routing
from rollart.control.rules import Rules
from rollart.errors import ConfigError
from rollart.seeds import derive_seed
from rollart.sim.fleet import FleetMember
from rollart.sim.loop import Loop
from rollart.sim.workload import Workload
from rollart.types import EngineId, Version

_OUTAGES = 0x6F75
"""Makes these draws independent of others with the same seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageOptions:
    """How often engines fail, and for how long.

    Example:
        OutageOptions(mtbf_s=86_400.0, repair_s=60.0, seed=1)  # each engine fails about once a day

    """

    mtbf_s: Annotated[float, AtLeast(0)] = 0.0
    """Mean time between failures of one engine; 0: engines never fail."""
    repair_s: Annotated[float, AtLeast(0)] = 60.0
    """Time until a failed engine is back, with the newest weights loaded."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "outages")


class Outages:
    """Calls `lose` when an engine fails and `regain` when it returns."""

    def __init__(
        self,
        options: OutageOptions,
        *,
        loop: Loop,
        lose: Callable[[EngineId], None],
        regain: Callable[[EngineId], None],
    ) -> None:
        self._options = options
        self._loop = loop
        self._lose = lose
        self._regain = regain
        self.count = 0
        """Failures so far."""

    def start(self, engines: Sequence[EngineId]) -> None:
        """Schedule the first failure of each engine."""
        if self._options.mtbf_s:
            for number, engine in enumerate(engines):
                random = Random(derive_seed(self._options.seed, _OUTAGES, number))
                self._schedule_failure(engine, random)

    def _schedule_failure(self, engine: EngineId, random: Random) -> None:
        seconds = random.expovariate(1 / self._options.mtbf_s)
        self._loop.after(seconds, partial(self._fail, engine, random))

    def _fail(self, engine: EngineId, random: Random) -> None:
        self.count += 1
        self._lose(engine)
        self._loop.after(self._options.repair_s, partial(self._repair, engine, random))

    def _repair(self, engine: EngineId, random: Random) -> None:
        self._regain(engine)
        self._schedule_failure(engine, random)


class WorkDurations(Protocol):
    """How long training and weight transfer take; `ClusterDurations` computes it from hardware.

    Example:
        durations = ClusterDurations(cluster)
        durations.train_s(4_000_000, version=Version(3))  # seconds of one optimizer step

    """

    def train_s(self, tokens: int, *, version: Version) -> float:
        """Return the time of an optimizer step on `tokens` tokens."""
        ...

    def publish_s(self, version: Version) -> float:
        """Return the time until engines may load a new version."""
        ...

    def update_s(self, version: Version, *, engine: EngineId) -> float:
        """Return how long an engine pauses to load it."""
        ...

    def lend_s(self) -> float:
        """Return the time to turn training hardware into an engine."""
        ...

    def recall_s(self) -> float:
        """Return the time to turn it back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The rules, the workload and the hardware of one simulated run.

    Example:
        World(rules=rules, workload=SyntheticWorkload(profiles, seed=0), slots=256,
              make_engines=cluster.make_engines, durations=ClusterDurations(cluster))

    """

    rules: Rules
    workload: Workload
    make_engines: Callable[[Loop], Sequence[FleetMember]]
    durations: WorkDurations
    slots: int
    routing: Routing = field(default_factory=Routing)
    rewards: ScoringOptions = field(default_factory=ScoringOptions)
    call_s: float = 0.0
    """Overhead of a call to an environment, in addition to its own work."""
    outages: OutageOptions = field(default_factory=OutageOptions)
    open_ended: bool = False
    """Simulate the run as the start of a longer one, up to its last step.

    A run that ends starts no attempt that its remaining steps could not train, so fewer and fewer
    attempts run during its last `alpha` + 1 steps. An open-ended run never drains.
    """

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ConfigError("run.environments", self.slots, "must be at least 1")
