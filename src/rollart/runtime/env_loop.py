"""The event loop of asynchronous environments, in a thread of its own.

An environment that blocks where it should await stops the others on this loop, and nothing else:
the driver's loop goes on, where every call has its time limit. A loop that stands still for long is
left behind with what blocks it: its calls are cancelled, and another loop takes those to come.

There is one for the process (`SHARED`): what environments share with each other, such as a client
or a semaphore, belongs to one loop.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from rollart.clock import SystemClock

T = TypeVar("T")
STALL_S = 5.0
_BEAT_S = 0.25


class EnvLoop:
    """Runs coroutines in a loop that answers."""

    def __init__(self, *, stall_s: float = STALL_S) -> None:
        self._stall_s = stall_s
        self._beating: _Beating | None = None
        self._pending: set[asyncio.Future[Any]] = set()
        self._watched_by: asyncio.AbstractEventLoop | None = None
        """The driver's loop, while it looks now and then whether this one stands still."""
        self.warn: Callable[[str], None] = _say_nothing
        """Told when a loop is left behind."""

    def submit(self, work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        """Run a coroutine; its result arrives on the running loop.

        Cancelling that cancels it; it is cancelled from here when the loop is left behind.
        """
        if self._beating is None:
            self._beating = _Beating()
        future = asyncio.wrap_future(self._beating.begin(work))
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        driver = asyncio.get_running_loop()
        if self._watched_by is not driver:
            self._watched_by = driver
            self._look_later(driver)
        return future

    def _look_later(self, driver: asyncio.AbstractEventLoop) -> None:
        driver.call_later(self._stall_s / 4, self._look, driver)

    def _look(self, driver: asyncio.AbstractEventLoop) -> None:
        if self._watched_by is not driver:
            return
        still_s = 0.0 if self._beating is None else self._beating.still_s
        if self._pending and still_s > self._stall_s:
            self._beating = None
            self.warn(
                f"an asynchronous environment has blocked its event loop for {still_s:.0f} s: it "
                "is left behind, and attempts of others beside it are made again. Await what takes "
                "long in it, or make it synchronous: it then has a thread"
            )
            for future in list(self._pending):
                future.cancel()
        if self._pending:
            self._look_later(driver)
        else:
            self._watched_by = None


class _Beating:
    """A loop in a daemon thread that says all the time that it is not blocked."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._beat_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any] | None] = set()
        """Held here: a loop itself holds no task that waits for ever."""
        threading.Thread(target=self._run, daemon=True, name="async-envs").start()

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine."""
        return asyncio.run_coroutine_threadsafe(self._held(work), self._loop)

    @property
    def still_s(self) -> float:
        """How long it has stood still."""
        return self._clock.now() - self._beat_s

    async def _held(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._beat()
        self._loop.run_forever()

    def _beat(self) -> None:
        self._beat_s = self._clock.now()
        self._loop.call_later(_BEAT_S, self._beat)


def _say_nothing(_text: str) -> None:
    pass


SHARED = EnvLoop()
