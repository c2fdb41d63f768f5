"""The last save of a run: what was trained outlives what broke, if the trainer does.

Where it cannot be made, that is told before anything else, with the checkpoint there is.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rollart.errors import ClusterError, StorageError, UserError
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
        why = str(error) or f"it took more than {_SAVE_S:g} s"
        last = _name_last(directory)
        raise UserError(f"{failure}; step {step} could not be saved ({why}); {last}") from failure
    raise UserError(
        f"{failure}; step {step} is saved in {kept}: when that is mended, go on with: "
        f"rollart train --resume {directory}"
    ) from failure


@contextmanager
def told_first(unsaved: StorageError | None, directory: Path) -> Generator[None]:
    """Raise, after what follows, that the end of a run is not saved; then what else is not."""
    more = ""
    try:
        yield
    except UserError as error:
        if unsaved is None:
            raise
        more = f"; {error}"
    if unsaved is not None:
        raise StorageError(f"{unsaved}; {_name_last(directory)}{more}") from unsaved


def _name_last(directory: Path) -> str:
    left = checkpoints(directory / "checkpoints")
    return f"the last checkpoint is {left[-1]}" if left else "there is no checkpoint"
