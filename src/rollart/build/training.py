"""Training from a config: what is checked before it, and the run itself to its end."""

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from rollart.build.going_on import check_going_on
from rollart.build.model import check_devices, check_model, prepare_model
from rollart.build.parts import make_scheduler
from rollart.build.record import checkpoint_directory, make_recorder
from rollart.build.resuming import find_model
from rollart.build.run import Run
from rollart.build.spending import Spending
from rollart.build.tasks import make_setups
from rollart.build.wholeness import blame, load_newest
from rollart.clock import SystemClock
from rollart.config import Config
from rollart.config.fitting import check_places
from rollart.errors import DamagedError, StorageError
from rollart.observe.hold import Hold, hold_directory
from rollart.runtime.checkpointing import checkpoints
from rollart.runtime.ending import run as run_to_end


def train(config: Config, *, resume: Path | None = None) -> int:
    """Run a config to its end, or go on from a checkpoint; return the exit code."""
    with hold_directory(config.run.path) as hold:
        return _train(config, hold=hold, resume=resume)


def _train(config: Config, *, hold: Hold, resume: Path | None) -> int:
    clock = SystemClock()
    saved = None if resume is None else load_newest(resume)
    # What cannot run is said before anything is made, and before an earlier run is moved aside.
    if saved is not None:
        check_going_on(config, saved)
        make_scheduler(config, saved)
    check_places(config)
    if config.ray.address:
        from rollart.on_ray.session import check_joinable  # noqa: PLC0415 loads ray

        check_joinable(config.ray.address)
    check_devices(config)
    setups = make_setups(config, config.sampling)
    say = partial(print, file=sys.stderr, flush=True)
    model = prepare_model(config, say) if saved is None else find_model(config, saved, say)
    check_model(model, named=config.model.path)
    prepared_s = clock.now()
    recorder = make_recorder(config, saved, hold=hold)
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
            raise blame(saved.directory, str(error)) from error
        raise
    recorder.close()
    return code
