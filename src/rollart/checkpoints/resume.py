"""Which config a checkpoint can be resumed with.

Loads no torch, so that a change that the checkpoint does not allow is refused at once.
"""

from contextlib import suppress
from pathlib import Path

from rollart.checkpoints.save import Saved, find_checkpoint, load_saved
from rollart.config import Config
from rollart.errors import ConfigError, DamagedError


def check_resumed(config: Config, path: Path) -> None:
    """Refuse what a path's checkpoint cannot be gone on with; who loads it tells of damage."""
    with suppress(DamagedError):
        check_going_on(config, load_saved(find_checkpoint(path)))


def check_going_on(config: Config, saved: Saved) -> None:
    """Refuse what a checkpoint cannot be gone on with."""
    _check_temperature(config, saved)
    begun_with, path = str(saved.notes.get("model", "")), config.model.path
    if begun_with.startswith("tiny:") and path.startswith("tiny:") and path != begun_with:
        raise ConfigError("model.path", path, f"the checkpoint is of {begun_with}: go on with that")
    step = saved.scheduler["version"]
    if step > config.run.steps:
        fix = f"the checkpoint is of step {step}: give a larger number to go on"
        raise ConfigError("run.steps", config.run.steps, fix)


def _check_temperature(config: Config, saved: Saved) -> None:
    """Refuse to train what was sampled at one temperature as if it had been at another."""
    temperature = config.sampling.temperature
    sampled_at = saved.notes.get("temperature", temperature)
    if saved.trajectories and sampled_at != temperature:
        count = len(saved.trajectories)
        raise ConfigError(
            "sampling.temperature",
            temperature,
            f"the checkpoint holds {count} trajectories sampled at {sampled_at}: go on with that",
        )
