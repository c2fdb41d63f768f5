"""A run's record: its directory, the files in it, and the messages at its start.

A resumed run changes no file before it has read all of its checkpoint: if it is refused until
then, rows, log and later checkpoints stay as they are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from rollart.checkpoints.save import Saved, set_aside_later
from rollart.config import Config, dump_toml
from rollart.config.loader import parse_config
from rollart.config.places import unused_units
from rollart.config.writer import changed_values
from rollart.control.snapshot import buffered, encode_rules
from rollart.errors import UserError
from rollart.observe.log import LogHeader
from rollart.observe.recorder import Recorder
from rollart.observe.run_directory import CONFIG, DirectoryLock, claim_directory
from rollart.pipelines.task_setups import task_streams
from rollart.types import Json


def checkpoint_directory(directory: Path) -> Path:
    """Return where a run's checkpoints are."""
    return directory / "checkpoints"


def make_recorder(config: Config, saved: Saved | None, *, lock: DirectoryLock) -> Recorder:
    """Claim the run's directory and say what is resumed; `open_record` comes next."""
    directory = config.run.path
    before = None if saved is None else _config_beside(saved)
    moved = claim_directory(directory, resumed=None if saved is None else saved.directory)
    if moved is not None:
        lock.relock(moved)
    stream = task_streams(config)[0]
    recorder = Recorder(
        directory,
        name=config.run.name,
        steps=config.run.steps,
        task_name=stream.name if len(config.tasks) > 1 else None,
    )
    for unused in unused_units(config) if config.ray.address else ():
        recorder.progress.warn(unused)
    if moved is not None:
        recorder.progress.message(f"the earlier run there was moved to {moved}")
    for text in () if saved is None else _describe_resumed(config, saved, before):
        recorder.progress.message(text)
    return recorder


def open_record(config: Config, recorder: Recorder, saved: Saved | None) -> None:
    """Open the files to write; a resumed run drops what came after its checkpoint."""
    header = LogHeader(
        seed=config.run.seed,
        rules=encode_rules(config.rules, task_streams(config)[0]),
        snapshot=None if saved is None else cast("Json", saved.scheduler),
    )
    recorder.open(header, resume_step=None if saved is None else saved.scheduler["version"])
    (config.run.path / CONFIG).write_text(dump_toml(config), encoding="utf-8")
    if saved is not None:
        recorder.metrics.take_over(saved.trajectories, buffered(saved.scheduler))
        for path in set_aside_later(saved.directory) if is_own(config, saved) else ():
            recorder.progress.message(f"a later checkpoint was set aside as {path}")


def is_own(config: Config, saved: Saved) -> bool:
    """Say whether a run is resumed in the directory of its checkpoint."""
    return saved.directory.resolve().parent == checkpoint_directory(config.run.path).resolve()


def _describe_resumed(config: Config, saved: Saved, before: Config | None) -> Iterator[str]:
    """Yield what the user should know about a resumed run."""
    step, steps = saved.scheduler["version"], config.run.steps
    apart = f" in {config.run.path}; the run it belongs to is not changed"
    where = "" if is_own(config, saved) else apart
    yield f"resuming from {saved.directory} (step {step} of {steps}){where}"
    if step == steps:
        yield "nothing is left to train: raise run.steps to train more"
    places = ("run.directory", "run.import_paths", "run.name")
    changes = [] if before is None else changed_values(before, config)
    for change in changes:
        if not change.startswith(places):
            yield f"changed: {change}"


def _config_beside(saved: Saved) -> Config | None:
    """Return the config of the run a checkpoint is of, if it is there and can be read."""
    try:
        return parse_config((saved.directory.parent.parent / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, UserError):
        return None
