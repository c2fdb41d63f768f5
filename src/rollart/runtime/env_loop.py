"""The event loop of asynchronous environments, in a thread of its own.

An environment that blocks where it should await holds up the others on this loop, and nothing else:
the driver's loop goes on, where every call has its time limit. When the time of a call is up while
the loop stands still, the loop is left behind with what blocks it: the other calls are cancelled,
another loop takes those to come, and environments of the old one are not used again.

There is one for the process (`SHARED`): what environments share with each other, such as a client
or a semaphore, belongs to one loop.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rollart.clock import SystemClock

T = TypeVar("T")
_BEAT_S = 0.25
_STILL_S = 1.0
"""A loop that has not beaten for so long stands still."""


class EnvLoop:
    """Runs coroutines in a loop that answers."""

    def __init__(self) -> None:
        self._thread: LoopThread | None = None
        self._calls: dict[asyncio.Future[Any], Call[Any]] = {}
        self.warn: Callable[[str], None] = _say_nothing
        """Told when a loop is left behind."""

    @property
    def thread(self) -> "LoopThread":
        """Where calls run now."""
        if self._thread is None:
            self._thread = LoopThread()
        return self._thread

    def submit(self, work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        """Run a coroutine; its result arrives on the running loop."""
        call = self.thread.begin(work)
        future = asyncio.wrap_future(call.future)
        self._calls[future] = call
        future.add_done_callback(self._forget)
        return future

    def cancel(self, future: "asyncio.Future[Any]") -> None:
        """Cancel a call, before anything that is submitted after this begins."""
        call = self._calls.get(future)
        if call is not None:
            call.future.cancel()
        future.cancel()

    def is_held_up(self, future: "asyncio.Future[Any]") -> bool:
        """Say whether a call whose time is up waits for another that blocks the loop.

        If the loop stands still it is left behind, whoever is to blame.
        """
        thread = self.thread
        if not thread.stands_still:
            return False
        call = self._calls.get(future)
        is_innocent = call is None or call.key is not thread.running
        self._thread = None
        self.warn(
            "an asynchronous environment blocks its event loop: it is left behind, and attempts of "
            "others beside it are made again. Await what takes long in it, or make it synchronous: "
            "it then has a thread"
        )
        for each in list(self._calls):
            if each is not future and not each.get_loop().is_closed():
                self.cancel(each)
        thread.end()
        return is_innocent

    async def settle(self, grace_s: float) -> None:
        """Give calls that were cancelled a while to end."""
        if self._thread is not None and not self._thread.stands_still:
            waiting = asyncio.wrap_future(self._thread.settle())
            await asyncio.wait({waiting}, timeout=grace_s)

    def _forget(self, future: "asyncio.Future[Any]") -> None:
        self._calls.pop(future, None)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A coroutine that runs in another thread."""

    future: "Future[T]"
    key: object


class LoopThread:
    """A loop in a daemon thread that says all the time that it is not blocked."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._beat_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[asyncio.Task[Any], object] = {}
        """Held here: a loop itself holds no task that waits for ever."""
        threading.Thread(target=self._run, daemon=True, name="async-envs").start()

    @property
    def stands_still(self) -> bool:
        """Whether something blocks it."""
        return self._clock.now() - self._beat_s > _STILL_S

    @property
    def running(self) -> object:
        """The key of the call that runs at this moment: what blocks a loop that stands still."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._tasks.get(task)

    def begin(self, work: Coroutine[Any, Any, T]) -> "Call[T]":
        """Run a coroutine."""
        key = object()
        held = self._held(work, key)
        return Call(asyncio.run_coroutine_threadsafe(held, self._loop), key)

    def settle(self) -> "Future[None]":
        """Return what is done when all that runs now has ended."""
        return asyncio.run_coroutine_threadsafe(self._settle(), self._loop)

    def end(self) -> None:
        """End the thread when what blocks it has ended, if ever."""
        self._loop.call_soon_threadsafe(self._loop.call_later, _STILL_S, self._loop.stop)

    async def _held(self, work: Coroutine[Any, Any, T], key: object) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = key
        try:
            return await work
        finally:
            del self._tasks[task]

    async def _settle(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._beat()
        self._loop.run_forever()
        self._loop.close()

    def _beat(self) -> None:
        self._beat_s = self._clock.now()
        self._loop.call_later(_BEAT_S, self._beat)


def _say_nothing(_text: str) -> None:
    pass


SHARED = EnvLoop()
