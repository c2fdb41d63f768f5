"""Wait for a condition, not for a time: how fast the machine is decides nothing."""

import asyncio
import time
from collections.abc import Callable

BOUND_S = 60.0
"""Longest to wait for what must happen; only a test that fails waits so long."""
_EVERY_S = 0.002
_PASSES = 100


async def until(is_so: Callable[[], object]) -> None:
    """Let others run until something is so."""
    async with asyncio.timeout(BOUND_S):
        while not is_so():
            await asyncio.sleep(_EVERY_S)


def wait_until(is_so: Callable[[], object]) -> None:
    """Block until something is so."""
    deadline_s = time.monotonic() + BOUND_S
    while not is_so():
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(_EVERY_S)


async def settled() -> None:
    """Let everything run that waits for nothing outside the event loop."""
    for _ in range(_PASSES):
        await asyncio.sleep(0)
