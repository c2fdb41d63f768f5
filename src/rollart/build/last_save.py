"""The last save of a run that failed: what was trained outlives what broke, if the trainer does."""

import asyncio
from pathlib import Path
from typing import NoReturn

from rollart.errors import ClusterError, UserError
from rollart.runtime.checkpointing import Checkpointer, checkpoints
from rollart.runtime.controller import Controller

_SAVE_S = 300.0
"""Longest the save may take before the run ends without it."""


async def save_and_raise(
    failure: UserError, controller: Controller, checkpointer: Checkpointer, directory: Path
) -> NoReturn:
    """Save a run that failed between two events; raise the failure, with how to go on."""
    step = controller.scheduler.optimizer
    if isinstance(failure, ClusterError) or controller.stepping.is_under_way:
        raise failure
    try:
        async with asyncio.timeout(_SAVE_S):
            kept = await checkpointer.save(controller.scheduler)
    except (UserError, TimeoutError) as error:
        left = checkpoints(directory / "checkpoints")
        last = f"the last checkpoint is {left[-1]}" if left else "there is no checkpoint"
        why = str(error) or f"it took more than {_SAVE_S:g} s"
        raise UserError(f"{failure}; step {step} could not be saved ({why}); {last}") from failure
    raise UserError(
        f"{failure}; step {step} is saved in {kept}: when that is mended, go on with: "
        f"rollart train --resume {directory}"
    ) from failure
