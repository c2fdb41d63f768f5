"""Going on from a checkpoint: what of a config may not have changed meanwhile.

Loads no torch, so that what is refused is refused at once.

Resuming: the checkpoint a run goes on from, and the model it began with.

The model is found again, not built again: its tokenizer belongs to the weights in the checkpoint,
its weights are what KL is measured against and what adapters are added to.
"""

from contextlib import suppress
from pathlib import Path

from rollart.checkpoints.save import Saved, find_checkpoint, load_saved
from rollart.config import Config
from rollart.errors import ConfigError, DamagedError
from rollart.pipelines.start_model import Say, prepare_model, tiny_directory


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


START = "start"
"""The note that names the directory of the model a run began with."""
_TOKENIZER = "tokenizer.json"


def find_model(config: Config, saved: Saved, say: Say) -> Path:
    """Return the directory of the model a run began with."""
    model = _find_tiny(config, saved)
    if model is None:
        model = prepare_model(config, say)
    held, wanted = model / _TOKENIZER, saved.directory / _TOKENIZER
    if held.is_file() and wanted.is_file() and held.read_bytes() != wanted.read_bytes():
        fix = f"the tokenizer of {model} is not that of {saved.directory}"
        fix += ": go on with the model and tasks that the run began with"
        raise ConfigError("model.path", config.model.path, fix)
    return model


def _find_tiny(config: Config, saved: Saved) -> Path | None:
    """Return a tiny model that is still there; None if it is to be built or is no tiny one."""
    start = saved.notes.get(START)
    if config.model.tiny_size is None or not isinstance(start, str):
        return None
    if Path(start).is_dir():
        return Path(start)
    if tiny_directory(config).name != Path(start).name:
        fix = f"the run began with {start}, which is gone, and what it was built of ([model], "
        fix += "[tasks] or the files of environments) has changed: undo that or put it back"
        raise ConfigError("model.path", config.model.path, fix)
    return None
