"""Stalls: says that something blocked the event loop, which everything in this process shares."""

import asyncio
from collections.abc import Callable

from rollart.clock import SystemClock

EVERY_S = 1.0
STALL_S = 5.0


async def watch_stalls(
    warn: Callable[[str], None], *, every_s: float = EVERY_S, stall_s: float = STALL_S
) -> None:
    """Warn once, if the loop stands still for longer than it ever should."""
    clock = SystemClock()
    while True:
        slept_s = clock.now()
        await asyncio.sleep(every_s)
        late_s = clock.now() - slept_s - every_s
        if late_s > stall_s:
            return warn(
                f"everything stood still for {late_s:.0f} s: an environment that is `inline` "
                "blocks? Without that it has a thread"
            )
