"""Virtual time: an asyncio event loop that waits for nothing.

When no callback is ready, time jumps to the next timer. Timers are taken one by one, in the order
of their times and, at the same time, in the order they were made; all that follows from one
happens before the next. So a program on this loop depends on nothing but its inputs, and hours of
it take a moment.

No thread is started: what is sent to an executor runs where it is and ends after the seconds it
said it would `spend`.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")


class StandstillError(Exception):
    """Everything waits and no timer is left."""


class _NoSelector(selectors.SelectSelector):
    """Jumps to the next timer instead of waiting for files."""

    jump: Callable[[], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self.jump()
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a number."""

    def __init__(self) -> None:
        self._now = 0.0
        self._spent: float | None = None
        self._made = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        selector = _NoSelector()
        selector.jump = self._jump
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def call_at(self, when, callback, *args, context=None):
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, self._made, timer))
        self._made += 1
        return timer

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()
        self._spent = 0.0
        try:
            result = func(*args)
        except Exception as error:
            finish, value = future.set_exception, error
        else:
            finish, value = future.set_result, result
        seconds, self._spent = self._spent, None
        self.call_later(seconds, lambda: None if future.done() else finish(value))
        return future

    def spend(self, seconds: float) -> None:
        """Let what runs in an executor take this long."""
        assert self._spent is not None, "nothing runs in an executor"
        self._spent += seconds

    def block(self, seconds: float) -> None:
        """Let time pass in which nothing runs."""
        self._now += seconds

    def _timer_handle_cancelled(self, handle) -> None:
        """Leave a cancelled timer in the heap; it is passed over when met."""

    def _jump(self) -> None:
        while self._timers:
            when, _, timer = heappop(self._timers)
            if not timer.cancelled():
                self._now = max(self._now, when)
                self._ready.append(timer)
                return
        raise StandstillError(f"nothing is left to happen at {self._now:g} s")


class VirtualClock:
    """The clock of a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a virtual loop of its own."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()
