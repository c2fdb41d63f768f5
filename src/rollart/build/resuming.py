"""Resuming: the checkpoint a run goes on from, and the model it began with.

The model is found again, not built again: its tokenizer belongs to the weights in the checkpoint,
its weights are what KL is measured against and what adapters are added to.
"""

from pathlib import Path

from rollart.build.model import Say, prepare_model, tiny_directory
from rollart.config import Config
from rollart.errors import ConfigError
from rollart.runtime.checkpointing import Saved

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
