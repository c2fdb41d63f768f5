"""Time: the only place the program reads it or waits for it.

Control receives `now` as an argument; drivers take a `Clock`. `SystemClock` is the real one,
monotonic, starting at zero so that a run's log reads in seconds since its start.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Reads and waits for time, in seconds since the clock was made."""

    def now(self) -> float:
        """Return the seconds since the clock was made."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._zero = time.monotonic() - start_s

    def now(self) -> float:
        """Return the seconds since the clock was made."""
        return time.monotonic() - self._zero

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)
