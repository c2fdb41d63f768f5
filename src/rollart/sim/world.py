"""World: everything a simulated run is determined by."""

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
    """How long what is neither rollout nor reward takes."""

    def train_s(self, tokens: int, *, version: Version) -> float:
        """Return the time of an optimizer step on so many tokens."""
        ...

    def publish_s(self, version: Version) -> float:
        """Return the time until a new version may be loaded."""
        ...

    def update_s(self, version: Version, *, engine: EngineId) -> float:
        """Return how long an engine stands still to load it."""
        ...

    def lend_s(self) -> float:
        """Return the time to make training hardware serve."""
        ...

    def recall_s(self) -> float:
        """Return the time to make it train again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The rules, the work and what it runs on."""

    rules: Rules
    workload: Workload
    make_engines: Callable[[Loop], Sequence[FleetMember]]
    durations: WorkDurations
    slots: int
    routing: Routing = field(default_factory=Routing)
    rewards: ScoringOptions = field(default_factory=ScoringOptions)
    call_s: float = 0.0
    """Time of a call to an environment beside its own work."""
    outages: OutageOptions = field(default_factory=OutageOptions)
    open_ended: bool = False
    """The run is the beginning of a longer one and is looked at up to its last step.

    A run that ends starts nothing its remaining steps could not train: its last steps, up to
    `alpha` + 1 of them, find ever fewer attempts under way. One that goes on never drains.
    """

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ConfigError("run.environments", self.slots, "must be at least 1")
