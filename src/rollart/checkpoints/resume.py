"""Resuming a run: which config a checkpoint can be resumed with.

A resumed run must keep values that the checkpoint fixed: the sampling temperature of trajectories
it holds and its tiny model. They are compared here, before anything is loaded; importing no torch
makes a refusal immediate.
"""

from contextlib import suppress
from pathlib import Path

from rollart.checkpoints.save import Saved, find_checkpoint, load_saved
from rollart.config import Config
from rollart.errors import ConfigError, DamagedError


def check_resumed(config: Config, path: Path) -> None:
    """Refuse a config that does not fit the checkpoint at `path`.

    A damaged checkpoint is ignored here: loading it later reports the damage.
    """
    with suppress(DamagedError):
        check_fits_checkpoint(config, load_saved(find_checkpoint(path)))


def check_fits_checkpoint(config: Config, saved: Saved) -> None:
    """Refuse a config that does not fit a checkpoint."""
    _check_temperature(config, saved)
    begun_with, path = str(saved.notes.get("model", "")), config.model.path
    if begun_with.startswith("tiny:") and path.startswith("tiny:") and path != begun_with:
        raise ConfigError("model.path", path, f"the checkpoint is of {begun_with}: use that")
    step = saved.scheduler["version"]
    if step > config.run.steps:
        fix = f"the checkpoint is of step {step}: give a larger number to continue"
        raise ConfigError("run.steps", config.run.steps, fix)


def _check_temperature(config: Config, saved: Saved) -> None:
    """Refuse a new temperature while the checkpoint holds trajectories sampled at the old one."""
    temperature = config.sampling.temperature
    sampled_at = saved.notes.get("temperature", temperature)
    if saved.trajectories and sampled_at != temperature:
        count = len(saved.trajectories)
        raise ConfigError(
            "sampling.temperature",
            temperature,
            f"the checkpoint holds {count} trajectories sampled at {sampled_at}: use that",
        )
