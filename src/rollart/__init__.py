"""RollArt: train LLM agents with reinforcement learning on disaggregated infrastructure.

The names of `__all__` are the public interface; everything else may move. Importing the package
loads neither torch nor ray: each name is imported from its module when it is first used.

Example:
    >>> import rollart
    >>> run = rollart.train(env="frozen_lake", steps=20, model={"path": "tiny:0.3M"})
    >>> rollart.evaluate(run, episodes=100)["success_rate"]
    0.41

"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollart.api import (
        Run,
        evaluate,
        load_config,
        plan,
        read_run,
        simulate,
        train,
    )
    from rollart.config import Config
    from rollart.errors import ConfigError, RollartError
    from rollart.ports import Blobs, Engine, Env, Player, RewardFunction, WeightStore
    from rollart.training.options import TrainingOptions, read_algorithm
    from rollart.training_ports import Algorithm, PolicyRuntime, Trainer
    from rollart.types import Reward, Task, Trajectory, Turn
    from rollart.weights.store import open_store

__version__ = "0.1.0"
__all__ = [
    "Algorithm",
    "Blobs",
    "Config",
    "ConfigError",
    "Engine",
    "Env",
    "Player",
    "PolicyRuntime",
    "Reward",
    "RewardFunction",
    "RollartError",
    "Run",
    "Task",
    "Trainer",
    "TrainingOptions",
    "Trajectory",
    "Turn",
    "WeightStore",
    "__version__",
    "evaluate",
    "load_config",
    "open_store",
    "plan",
    "read_algorithm",
    "read_run",
    "simulate",
    "train",
]
_MODULES = {
    "api": ("Run", "evaluate", "load_config", "plan", "read_run", "simulate", "train"),
    "config": ("Config",),
    "errors": ("ConfigError", "RollartError"),
    "ports": (
        "Blobs",
        "Engine",
        "Env",
        "Player",
        "RewardFunction",
        "WeightStore",
    ),
    "training.options": ("TrainingOptions", "read_algorithm"),
    "training_ports": ("Algorithm", "PolicyRuntime", "Trainer"),
    "types": ("Reward", "Task", "Trajectory", "Turn"),
    "weights.store": ("open_store",),
}
"""The module that each public name is in."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    for module, names in _MODULES.items():
        if name in names:
            found = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
