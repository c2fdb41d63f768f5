"""Resuming a run: which config a checkpoint can be resumed with, and whether it is complete.

A resumed run keeps values that the checkpoint fixed: the sampling temperature of the trajectories
it holds and its tiny model. They are compared before anything is loaded; importing no torch makes a
refusal immediate.

Every file of a checkpoint must be there and readable. Of weights and moments only the headers are
read, which say how long a file is and what shapes it holds, so damage is found before anything
starts. A damaged checkpoint is reported with the newest older one that is complete.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from rollart.checkpoints.save import (
    Saved,
    checkpoints,
    find_checkpoint,
    load_saved,
    step_of,
)
from rollart.config import Config
from rollart.errors import ConfigError, DamagedError, UserError
from rollart.models.files import indexed_files
from rollart.serialization.codec import CodecError, read_object


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


_MODEL = "model"
_OPTIMIZER = "optimizer"
_ADAPTER = "adapter"
_RECORD = "trainer.json"
_CONFIG = "config.json"
Shapes = dict[str, list[int]]


def read_checkpoint(path: Path) -> Saved:
    """Read the checkpoint a user means; of a damaged one, say which older one is whole."""
    checkpoint = find_checkpoint(path)
    try:
        return read_whole(checkpoint)
    except DamagedError as error:
        raise damaged_error(checkpoint, str(error)) from error


def read_whole(checkpoint: Path) -> Saved:
    """Read the run's part of a checkpoint, of which every part is there."""
    try:
        saved = load_saved(checkpoint)
    except DamagedError as error:
        raise DamagedError(
            str(error).removeprefix(f"{checkpoint}: not a whole checkpoint: ")
        ) from error
    _check_model(checkpoint)
    _read_shapes(checkpoint, _OPTIMIZER)
    if (checkpoint / _ADAPTER).is_dir():
        _read_shapes(checkpoint / _ADAPTER, "adapter_model")
    return saved


def check_model_files(checkpoint: Path) -> None:
    """Refuse a checkpoint whose weights are not whole or not those of its model."""
    try:
        _check_model(checkpoint)
    except DamagedError as error:
        raise damaged_error(checkpoint, str(error)) from error


def damaged_error(checkpoint: Path, why: str) -> DamagedError:
    """Return the error of a damaged checkpoint: what is wrong with it, and what to do."""
    older = next((each for each in _before(checkpoint) if _is_whole(each)), None)
    if not checkpoint.exists():
        return DamagedError(
            f"{checkpoint} no longer exists: a running run keeps only the newest ones; try again"
        )
    if older is None:
        return DamagedError(f"{checkpoint} is damaged ({why}), and no older one is whole")
    return DamagedError(
        f"{checkpoint} is damaged ({why}): move it away to resume from {older.name}, "
        f"or name {older}"
    )


def _before(checkpoint: Path) -> list[Path]:
    """Return the older checkpoints beside one, newest first."""
    beside = checkpoints(checkpoint.absolute().parent)
    older = [each for each in beside if step_of(each) < step_of(checkpoint)]
    return [checkpoint.parent / each.name for each in reversed(older)]


def _is_whole(checkpoint: Path) -> bool:
    try:
        read_whole(checkpoint)
    except UserError:
        return False
    return True


def _check_model(checkpoint: Path) -> None:
    _read_json(checkpoint / _CONFIG)
    held = _read_shapes(checkpoint, _MODEL)
    record = _read_json(checkpoint / _RECORD)
    fingerprint = record.get("fingerprint")
    trained = cast("Shapes", fingerprint.get("parameters", {}) if fingerprint else {})
    # A model with adapters is trained under other names than it is stored under.
    names = held if (checkpoint / _ADAPTER).is_dir() else trained
    for name in names:
        if held.get(name) != trained.get(name, held.get(name)):
            raise DamagedError(
                f"{_MODEL}.safetensors is of another model: its {name} is "
                f"{_show(held.get(name))}, {_RECORD} says {_show(trained[name])}"
            )


def _read_shapes(checkpoint: Path, stem: str) -> Shapes:
    """Return the shapes of all tensors stored under a stem, in one file or several."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 an extra

    names = [f"{stem}.safetensors"]
    index = checkpoint / f"{stem}.safetensors.index.json"
    if index.is_file():
        try:
            names = indexed_files(_read_json(index))
        except ValueError as error:
            raise DamagedError(f"{index.name}: {error}") from error
    shapes: Shapes = {}
    for name in names:
        try:
            with safe_open(checkpoint / name, framework="np") as opened:
                shapes |= {key: opened.get_slice(key).get_shape() for key in opened.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise DamagedError(f"{name} is missing") from None
        except (OSError, SafetensorError) as error:
            raise DamagedError(f"{name} is cut short or overwritten") from error
    return shapes


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return read_object(file)
    except CodecError as error:
        raise DamagedError(str(error)) from error


def _show(shape: list[int] | None) -> str:
    return "absent" if shape is None else "x".join(map(str, shape))
