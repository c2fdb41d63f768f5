"""Training from a config: a run's directory, its model, and the run itself to its end."""

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import cast

from rollart.build.model import prepare_model
from rollart.build.parts import make_scheduler
from rollart.build.run import CONFIG, INTERRUPTED, Run, checkpoint_directory
from rollart.build.tasks import make_setups, task_streams
from rollart.clock import SystemClock
from rollart.config import Config, dump_toml
from rollart.config.fitting import check_places
from rollart.config.placing import unused_units
from rollart.config.rules import make_rules
from rollart.control.recording import encode_rules
from rollart.control.snapshot import buffered
from rollart.errors import ConfigError
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
    saved = None if resume is None else load_saved(find_checkpoint(resume))
    if saved is not None:
        _check_temperature(config, saved)
        _check_going_on(config, saved)
        make_scheduler(config, saved)  # refuses what it cannot go on from
    # What cannot run is said before anything is made.
    check_places(config)
    if config.ray.address:
        from rollart.on_ray.session import check_joinable  # noqa: PLC0415 loads ray

        check_joinable(config.ray.address)
    setups = make_setups(config, config.sampling)
    model = prepare_model(config, partial(print, file=sys.stderr, flush=True))
    prepared_s = clock.now()
    directory = config.run.path
    moved = claim_directory(directory, resumed=None if saved is None else saved.directory)
    if saved is None:
        (directory / CONFIG).write_text(dump_toml(config))
    rules = make_rules(config)
    header = LogHeader(
        seed=config.run.seed,
        rules=encode_rules(rules, task_streams(config)[0]),
        snapshot=None if saved is None else cast("Json", saved.scheduler),
    )
    recorder = Recorder(
        directory,
        header,
        name=config.run.name,
        steps=config.run.steps,
        resume_step=None if saved is None else saved.scheduler["version"],
    )
    if saved is not None:
        recorder.metrics.take_over(saved.trajectories, buffered(saved.scheduler))
    for unused in unused_units(config) if config.ray.address else ():
        recorder.progress.warn(unused)
    if moved is not None:
        recorder.progress.message(f"the earlier run there was moved to {moved}")
    if (
        saved is not None
        and saved.directory.resolve().parent == checkpoint_directory(directory).resolve()
    ):
        for path in set_aside_later(saved.directory):
            recorder.progress.message(f"a later checkpoint was set aside as {path}")
    try:
        run = Run(
            config=config,
            directory=directory,
            setups=setups,
            recorder=recorder,
            saved=saved,
            model=model,
        )
        run.seconds["model"] = prepared_s
        return run_to_end(run.run())
    except asyncio.CancelledError:
        left = checkpoints(checkpoint_directory(directory))
        last = left[-1] if left else "none"
        recorder.progress.message(f"stopped at once; last checkpoint: {last}", style="bold")
        return INTERRUPTED
    finally:
        recorder.close()


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
