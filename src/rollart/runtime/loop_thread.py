"""LoopThread: an event loop in a daemon thread, which says all the time that it is not blocked.

Work is handed over as a function that makes an awaitable, called on the loop: what never begins
was never made. A task belongs to the call it was started for, also one that a call starts itself,
so that what blocks the loop has a name.

A loop that is left behind goes on, if it ever can, until what runs on it has ended and nobody who
keeps something there is left: what belongs to a loop can be closed nowhere else.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from rollart.clock import SystemClock
from rollart.runtime.env_thread import Answer

_BEAT_S = 0.25
_STILL_S = 1.0
"""A loop that has not beaten for so long stands still."""
RAISED = (Exception, SystemExit, asyncio.CancelledError)
"""What an environment may raise; a cancellation from inside it is no cancelling of the attempt."""

Make = Callable[[], Awaitable[object]]


class Call:
    """Work that runs in another thread; its answer arrives in a future of the loop that asked."""

    def __init__(self, make: Make, thread: "LoopThread", *, name: str) -> None:
        self.thread = thread
        self.name = name
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._make = make
        self._task: asyncio.Task[Answer] | None = None
        self._is_cancelled = False

    def start(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Task[Answer] | None":
        """Begin, on the loop it runs on; None if it was cancelled before."""
        if not self._is_cancelled:
            self._task = loop.create_task(answer(self._make))
        return self._task

    def cancel(self) -> None:
        """Cancel it, on the loop it runs on."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def reply(self, task: "asyncio.Task[Answer]") -> None:
        """Send the answer to who asked, if they still listen."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        outcome = task.result() if error is None else (None, error)
        with contextlib.suppress(RuntimeError):  # their loop was closed meanwhile
            self.future.get_loop().call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: Answer) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class LoopThread:
    """Runs calls side by side until it is left behind and empty."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._beat_s = self._clock.now()
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)
        self._running: dict[asyncio.Task[Any], Call] = {}
        """Held here: a loop itself holds no task that waits for ever."""
        self._calls: WeakKeyDictionary[asyncio.Task[Any], Call] = WeakKeyDictionary()
        """The call of each task, of those too that a call started itself."""
        self._residents = 0
        self._is_left = self._is_over = False
        threading.Thread(target=self._run, daemon=True, name="async-envs").start()

    @property
    def stands_still(self) -> bool:
        """Whether something blocks it."""
        return self._clock.now() - self._beat_s > _STILL_S

    @property
    def blocker(self) -> Call | None:
        """The call that runs at this moment: what blocks a loop that stands still."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._calls.get(task)

    def begin(self, make: Make, *, name: str) -> Call:
        """Run what a function makes."""
        call = Call(make, self, name=name)
        self._loop.call_soon_threadsafe(self._start, call)
        return call

    def cancel(self, call: Call) -> None:
        """Cancel a call, before anything that is begun after this."""
        with contextlib.suppress(RuntimeError):  # it ended, and the loop with it
            self._loop.call_soon_threadsafe(call.cancel)

    def enter(self) -> None:
        """Keep something there from now on."""
        self._residents += 1

    def leave(self) -> None:
        """Have nothing there any more."""
        self._residents -= 1
        if self._is_left:
            with contextlib.suppress(RuntimeError):  # it has seen that and ended
                self._loop.call_soon_threadsafe(self._stop_if_empty)

    def leave_behind(self) -> None:
        """End the thread when it is empty, if ever."""
        self._is_left = True
        self._loop.call_soon_threadsafe(self._stop_if_empty)

    async def rest(self) -> None:
        """Wait, on this loop, until all that runs there now has ended."""
        if others := self._running.keys() - {asyncio.current_task()}:
            await asyncio.wait(others)

    def _start(self, call: Call) -> None:
        task = call.start(self._loop)
        if task is not None:
            self._running[task] = self._calls[task] = call
            task.add_done_callback(self._finish)

    def _finish(self, task: "asyncio.Task[Answer]") -> None:
        self._running.pop(task).reply(task)
        self._stop_if_empty()

    def _stop_if_empty(self) -> None:
        if self._is_left and not self._residents and not self._running:
            self._is_over = True
            self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._beat()
        while not self._is_over:
            with contextlib.suppress(BaseException):  # what a task of an environment exits with
                self._loop.run_forever()
        self._loop.close()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(work, loop=loop, **options)
        parent = asyncio.current_task(loop)
        call = None if parent is None else self._calls.get(parent)
        if call is not None:
            self._calls[task] = call
        return task

    def _beat(self) -> None:
        self._beat_s = self._clock.now()
        self._loop.call_later(_BEAT_S, self._beat)


async def answer(make: Make) -> Answer:
    """Return what comes of an awaitable, or what it raised, as a value."""
    try:
        return await make(), None
    except RAISED as error:
        return None, error
