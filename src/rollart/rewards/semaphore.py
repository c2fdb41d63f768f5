"""Seats: how many may be at something at once in this process, whichever event loop they are on.

An instance that takes several calls at once runs each on a loop of its own thread, where a limit of
asyncio's would hold for that loop alone. Seats are given in the order they were asked for, and one
given to somebody who has gone meanwhile is passed on.
"""

import asyncio
import threading
from collections import deque

_Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


class CrossLoopSemaphore:
    """So many seats; held within `async with`."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            waiter = loop, loop.create_future()
            self._waiting.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if not self._withdraw(waiter):
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _withdraw(self, waiter: _Waiter) -> bool:
        """Take a waiter out of the queue; say whether it was still there."""
        with self._lock:
            try:
                self._waiting.remove(waiter)
            except ValueError:
                return False
            return True

    def _pass_on(self) -> None:
        """Give a seat to whoever waits longest, or keep it free."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            loop, seat = self._waiting.popleft()
        loop.call_soon_threadsafe(_give, seat)


def _give(seat: asyncio.Future[None]) -> None:
    if not seat.done():  # else its waiter was cancelled, and passes the seat on itself
        seat.set_result(None)
