"""The run or checkpoint that a command names: told apart from what is none, before torch loads."""

from pathlib import Path

from rollart.errors import UserError
from rollart.observe.hold import find_holder
from rollart.runtime.checkpointing import STATE, checkpoints, find_checkpoint

CONFIG = "config.toml"
"""The resolved config in a run's directory."""
CHECKPOINTS = "checkpoints"


def check_saved(path: Path, *, given: str) -> None:
    """Refuse what is no run that has saved something and no checkpoint; `given` is what was typed.

    Whether the checkpoint is whole is another question.
    """
    _check_directory(path, given=given)
    if not any((path / name).exists() for name in (STATE, CONFIG, CHECKPOINTS)):
        raise UserError(
            f"{given}: is no run's directory (it holds neither {CONFIG} nor {CHECKPOINTS}/) and no "
            f"checkpoint (no {STATE}); name one, e.g. runs/quickstart"
        )
    holder = find_holder(path)
    if holder is not None and not checkpoints(path / CHECKPOINTS):
        raise UserError(f"{given}: holds no checkpoint yet; {holder} is at work there: wait for it")
    find_checkpoint(path)


def find_run(path: Path, *, given: str) -> Path:
    """Return the run's directory that a path is, or that a checkpoint's path lies in."""
    _check_directory(path, given=given)
    for directory in (path, *list(path.resolve().parents)[:2]):
        if (directory / CONFIG).is_file():
            return directory
    raise UserError(f"{given}: holds no {CONFIG}, so it is not a run's directory")


def _check_directory(path: Path, *, given: str) -> None:
    name = "name a run's directory, e.g. runs/quickstart, or one of its checkpoints"
    if not path.exists():
        raise UserError(f"{given}: no such directory; {name}")
    if not path.is_dir():
        raise UserError(f"{given}: is a file; {name}")
