"""Hedging: a delivery that is late gets a rival, and the first answer is taken.

A failure that is not final leaves the other its chance; a final one ends both. Whatever happens,
neither delivery is left running.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rollart.errors import ScoreError

T = TypeVar("T")
Delivery = Coroutine[Any, Any, T]


async def race(
    first: Delivery[T], *, late_s: float | None, second: Callable[[], Delivery[T] | None]
) -> tuple[T, bool]:
    """Return an answer and whether the rival gave it.

    After `late_s` without one (None: never), `second` is asked for a rival; it may give none.
    """
    tasks = [asyncio.create_task(first)]
    try:
        if late_s is not None:
            done, _ = await asyncio.wait(tasks, timeout=late_s)
            rival = None if done else second()
            if rival is not None:
                tasks.append(asyncio.create_task(rival))
        winner = await _winner(set(tasks))
        return winner.result(), winner is not tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _winner(pending: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Return the first delivery that answered, or whose failure decides."""
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None:
                return task
        for task in done:
            error = task.exception()
            if not pending or not isinstance(error, ScoreError) or error.is_final:
                return task
