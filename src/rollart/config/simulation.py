"""What only simulator and planner ask for: failures, rewards, constants of the cost model."""

from dataclasses import dataclass, field

from rollart.errors import ConfigError
from rollart.sim.costs import Constants
from rollart.sim.rewards import RewardOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """What a simulated cluster is like beyond its hardware."""

    engine_mtbf_s: float = 0.0
    """Mean time an engine serves until it dies; 0 is for ever."""
    engine_repair_s: float = 60.0
    """Time until a dead engine is back."""
    rewards: RewardOptions = field(default_factory=RewardOptions)
    """Where scoring runs."""
    constants: Constants = field(default_factory=Constants)
    """What the cost model cannot derive from the hardware."""

    def __post_init__(self) -> None:
        for name in ("engine_mtbf_s", "engine_repair_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"simulation.{name}", getattr(self, name), "must be at least 0")
