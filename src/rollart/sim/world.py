"""World: everything that determines a simulated run.

Two simulations of equal worlds give equal events: every duration and every script follows from the
world and its seeds, never from the machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rollart.config.simulation import ScoringOptions
from rollart.control.routing import Routing
from rollart.control.rules import Rules
from rollart.errors import ConfigError
from rollart.sim.fleet import FleetMember
from rollart.sim.loop import Loop
from rollart.sim.outages import OutageOptions
from rollart.sim.workload import Workload
from rollart.types import EngineId, Version


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
