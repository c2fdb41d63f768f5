"""Stepping: the optimizer step under way.

It outlives the tasks of a run that fails elsewhere: the trainer makes the step whatever becomes of
the run, so a run that ends takes it in first, and can then be saved as the trainer is.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from rollart.events import StepFinished
from rollart.types import StepReport

_PATIENCE_S = 600.0
"""Longest a run that failed waits for the step under way."""


class Stepping:
    """At most one optimizer step, until the scheduler knows of its end."""

    def __init__(self) -> None:
        self._step: asyncio.Task[StepReport] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the trainer may be further than the scheduler knows."""
        return self._step is not None

    def begin(self, step: Coroutine[Any, Any, StepReport]) -> None:
        """Begin a step."""
        self._step = asyncio.create_task(step)

    async def ended(self) -> StepFinished:
        """Wait for the end of the step that was begun; whoever waits no more does not end it."""
        assert self._step is not None
        return _finished(await asyncio.shield(self._step))

    def settle(self) -> None:
        """Take note that the scheduler knows of the step's end."""
        self._step = None

    async def finish(self) -> StepFinished | None:
        """Wait for the end of the step, if there is one; None if it did not end well."""
        if self._step is None:
            return None
        (done, _) = await asyncio.wait({self._step}, timeout=_PATIENCE_S)
        ended = [step for step in done if not step.cancelled() and step.exception() is None]
        return _finished(ended[0].result()) if ended else None

    def cancel(self) -> None:
        """Wait no more for the step."""
        if self._step is not None:
            self._step.cancel()


def _finished(report: StepReport) -> StepFinished:
    return StepFinished(version=report.version, metrics=report.metrics)
