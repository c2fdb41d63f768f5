"""A semaphore that works across event loops: at most `count` holders in this process.

An instance with several concurrent calls runs each on the event loop of its own thread, and
`asyncio.Semaphore` would limit each loop separately. Waiters are served in the order they came. A
permit given to a waiter that was cancelled meanwhile goes to the next one, so none is lost.
"""

import asyncio
import threading
from collections import deque

_Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


class CrossLoopSemaphore:
    """Limits how many tasks are inside `async with` at once, in all event loops together.

    Example:
        >>> semaphore = CrossLoopSemaphore(8)
        >>> async with semaphore:
        ...     ...

    """

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
                # It left the queue because it got a permit, which it will not use.
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _withdraw(self, waiter: _Waiter) -> bool:
        """Remove a waiter from the queue; return whether it was still in it."""
        with self._lock:
            try:
                self._waiting.remove(waiter)
            except ValueError:
                return False
            return True

    def _pass_on(self) -> None:
        """Give the permit to the longest waiter, or keep it free."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            loop, permit = self._waiting.popleft()
        loop.call_soon_threadsafe(_give, permit)


def _give(permit: asyncio.Future[None]) -> None:
    if not permit.done():  # otherwise its waiter was cancelled and passes the permit on itself
        permit.set_result(None)
