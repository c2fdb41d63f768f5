"""The clock: the only module that reads the time or waits for it.

`control/` receives `now` as an argument and drivers take a `Clock`, so tests and the simulator can
replace time. `SystemClock` is the real one: monotonic and starting at zero, so that a run's log
shows seconds since its start.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Reads the time and waits, in seconds since the clock was created.

    Example:
        >>> clock: Clock = SystemClock()
        >>> await clock.sleep(0.5)
        >>> clock.now()  # about 0.5

    """

    def now(self) -> float:
        """Return the seconds since the clock was created."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemClock:
    """The machine's monotonic clock; `start_s` is the time it shows at first."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._zero = time.monotonic() - start_s

    def now(self) -> float:
        """Return the seconds since the clock was created."""
        return time.monotonic() - self._zero

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)
