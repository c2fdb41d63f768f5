"""Training from a config: a run's directory, its model, and the run itself to its end."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from rollart.build.model import check_model, prepare_model
from rollart.build.parts import make_scheduler
from rollart.build.run import CONFIG, Run, checkpoint_directory
from rollart.build.spending import Spending
from rollart.build.tasks import make_setups, task_streams
from rollart.clock import SystemClock
from rollart.config import Config, dump_toml
from rollart.config.changes import changed_values
from rollart.config.fitting import check_places
from rollart.config.loading import parse_config
from rollart.config.placing import unused_units
from rollart.config.rules import make_rules
from rollart.control.recording import encode_rules
from rollart.control.snapshot import buffered
from rollart.errors import ConfigError, DamagedError, StorageError, UserError
from rollart.observe.directory import claim_directory
from rollart.observe.log import LogHeader
from rollart.observe.recorder import Recorder
from rollart.runtime.checkpointing import (
    Saved,
    checkpoints,
    find_checkpoint,
    load_saved,
    set_aside_later,
)
from rollart.runtime.ending import run as run_to_end
from rollart.types import Json


def train(config: Config, *, resume: Path | None = None) -> int:
    """Run a config to its end, or go on from a checkpoint; return the exit code."""
    clock = SystemClock()
    saved = None if resume is None else _load(find_checkpoint(resume))
    # What cannot run is said before anything is made, and before an earlier run is moved aside.
    if saved is not None:
        _check_temperature(config, saved)
        _check_going_on(config, saved)
        make_scheduler(config, saved)
    check_places(config)
    if config.ray.address:
        from rollart.on_ray.session import check_joinable  # noqa: PLC0415 loads ray

        check_joinable(config.ray.address)
    setups = make_setups(config, config.sampling)
    model = prepare_model(config, partial(print, file=sys.stderr, flush=True))
    check_model(config, model)
    prepared_s = clock.now()
    recorder = _open_recorder(config, saved)
    spending = Spending(recorder.metrics.ledger)
    spending.note("model", prepared_s)
    if saved is not None and "spent" in saved.notes:
        spending.go_on(cast("Mapping[str, Any]", saved.notes["spent"]))
    run = Run(
        config=config,
        directory=config.run.path,
        setups=setups,
        recorder=recorder,
        saved=saved,
        model=model,
        spending=spending,
    )
    try:
        code = run_to_end(run.run())
    except asyncio.CancelledError:
        left = checkpoints(checkpoint_directory(run.directory))
        last = left[-1] if left else "none"
        recorder.progress.message(f"stopped at once; last checkpoint: {last}", style="bold")
        code = run.exit_code
    except BaseException as error:
        with contextlib.suppress(StorageError):  # a full disk has been told
            recorder.close()
        if isinstance(error, DamagedError) and saved is not None:
            raise DamagedError(f"{error}{_others(saved.directory)}") from error
        raise
    recorder.close()
    return code


def _open_recorder(config: Config, saved: Saved | None) -> Recorder:
    """Claim the run's directory and open what is written there; say what is gone on from."""
    directory = config.run.path
    before = None if saved is None else _config_beside(saved)
    moved = claim_directory(directory, resumed=None if saved is None else saved.directory)
    if saved is None:
        (directory / CONFIG).write_text(dump_toml(config))
    stream = task_streams(config)[0]
    header = LogHeader(
        seed=config.run.seed,
        rules=encode_rules(make_rules(config), stream),
        snapshot=None if saved is None else cast("Json", saved.scheduler),
    )
    recorder = Recorder(
        directory,
        header,
        name=config.run.name,
        steps=config.run.steps,
        resume_step=None if saved is None else saved.scheduler["version"],
        task_name=stream.name if len(config.tasks) > 1 else None,
    )
    say = recorder.progress.message
    for unused in unused_units(config) if config.ray.address else ():
        recorder.progress.warn(unused)
    if moved is not None:
        say(f"the earlier run there was moved to {moved}")
    if saved is not None:
        recorder.metrics.take_over(saved.trajectories, buffered(saved.scheduler))
        is_own = saved.directory.resolve().parent == checkpoint_directory(directory).resolve()
        for text in _going_on(config, saved, before, is_own=is_own):
            say(text)
        for path in set_aside_later(saved.directory) if is_own else ():
            say(f"a later checkpoint was set aside as {path}")
    return recorder


def _going_on(
    config: Config, saved: Saved, before: Config | None, *, is_own: bool
) -> Iterator[str]:
    """Yield what a person should know who has a run go on."""
    step, steps = saved.scheduler["version"], config.run.steps
    where = "" if is_own else f" in {config.run.path}; the run it is of stays as it is"
    yield f"going on from {saved.directory} (step {step} of {steps}){where}"
    if step == steps:
        yield "nothing is left to train: give a larger run.steps to train on"
    places = ("run.directory", "run.import_paths", "run.name")
    changes = [] if before is None else changed_values(before, config)
    for change in changes:
        if not change.startswith(places):
            yield f"changed: {change}"


def _config_beside(saved: Saved) -> Config | None:
    """Return the config of the run a checkpoint is of, if it is there and can be read."""
    try:
        return parse_config((saved.directory.parent.parent / CONFIG).read_text())
    except (OSError, ValueError, UserError):
        return None


def _load(checkpoint: Path) -> Saved:
    try:
        return load_saved(checkpoint)
    except DamagedError as error:
        raise DamagedError(f"{error}{_others(checkpoint)}") from error


def _others(checkpoint: Path) -> str:
    """Name the newest other checkpoint of a run."""
    beside = [each for each in checkpoints(checkpoint.parent) if each != checkpoint]
    return f"; another is there: rollart train --resume {beside[-1]}" if beside else ""


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


def _check_going_on(config: Config, saved: Saved) -> None:
    """Refuse to go on with another tiny model, or to a step that was passed."""
    begun_with, path = str(saved.notes.get("model", "")), config.model.path
    if begun_with.startswith("tiny:") and path.startswith("tiny:") and path != begun_with:
        raise ConfigError("model.path", path, f"the checkpoint is of {begun_with}: go on with that")
    step = saved.scheduler["version"]
    if step > config.run.steps:
        fix = f"the checkpoint is of step {step}: give a larger number to go on"
        raise ConfigError("run.steps", config.run.steps, fix)
