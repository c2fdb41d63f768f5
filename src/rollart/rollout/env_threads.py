"""The event loop of asynchronous environments, in a thread of its own.

An environment that blocks where it should await holds up the others on this loop, and nothing else:
the driver's loop goes on, where every call has its time limit. When the time of a call is up while
the loop stands still, the loop is left behind with what blocks it: the other calls are cancelled,
another loop takes those to come, and environments of the old one are not used again, only closed
there if it ever answers.

There is one for the process (`SHARED`): what environments share with each other, such as a client
or a semaphore, belongs to one loop.

A thread that runs the calls of one environment, in order, and can be left behind.

An answer reaches the event loop that asked as a value, a future of that loop. The thread is a
daemon: one that hangs keeps neither the loop nor the end of the process waiting.

LoopThread: an event loop in a daemon thread, which says all the time that it is not blocked.

Work is handed over as a function that makes an awaitable, called on the loop: what never begins
was never made. A task belongs to the call it was started for, also one that a call starts itself,
so that what blocks the loop has a name.

A loop that is left behind goes on, if it ever can, until what runs on it has ended and nobody who
keeps something there is left: what belongs to a loop can be closed nowhere else.
"""

import asyncio
import contextlib
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from rollart.clock import SystemClock

Answer = tuple[object, BaseException | None]
"""What a call returned, or what it raised; as a value, for futures refuse StopIteration."""


class EnvThread:
    """Runs calls in order until it is abandoned."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="env").start()

    def submit(
        self, call: Callable[[], object], unwanted: Callable[[object], None] | None = None
    ) -> "asyncio.Future[Answer]":
        """Run a call; `unwanted` is given what it returns when nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._calls.put(_Call(run=call, loop=loop, future=future, unwanted=unwanted))
        return future

    def abandon(self) -> None:
        """End the thread after the calls it was given, if they ever return."""
        self._calls.put(None)

    def _run(self) -> None:
        while self._answer_next():
            pass

    def _answer_next(self) -> bool:
        # A function of its own, so that a call and what it holds are let go while waiting.
        call = self._calls.get()
        if call is not None:
            call.answer()
        return call is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    run: Callable[[], object]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Answer]"
    unwanted: Callable[[object], None] | None

    def answer(self) -> None:
        try:
            answer = self.run(), None
        except BaseException as error:
            answer = None, error
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self.loop.call_soon_threadsafe(self._settle, answer)

    def _settle(self, answer: Answer) -> None:
        if not self.future.done():
            self.future.set_result(answer)
        elif self.unwanted is not None and answer[1] is None:
            self.unwanted(answer[0])


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


Pending = asyncio.Future[Answer]


class EnvLoop:
    """Runs calls in a loop that answers."""

    def __init__(self) -> None:
        self._thread: LoopThread | None = None
        self._calls: dict[Pending, Call] = {}
        self._blockers: WeakSet[Pending] = WeakSet()
        self._held_up: WeakSet[Pending] = WeakSet()
        self._told: set[str] = set()
        self._warn = _print

    @property
    def thread(self) -> LoopThread:
        """Where calls run now."""
        if self._thread is None:
            self._thread = LoopThread()
        return self._thread

    def listen(self, warn: Callable[[str], None]) -> Callable[[], None]:
        """Tell warnings to this from now on, and each anew; return what undoes that."""
        before, told = self._warn, self._told
        self._warn, self._told = warn, set()

        def undo() -> None:
            self._warn, self._told = before, told

        return undo

    def warn_once(self, key: str, text: str) -> None:
        """Tell a warning unless one with its key was told."""
        if key not in self._told:
            self._told.add(key)
            self._warn(text)

    def is_left(self, thread: LoopThread) -> bool:
        """Say whether a thread is one that was left behind."""
        return thread is not self._thread

    def submit(self, make: Make, *, name: str) -> Pending:
        """Run what a function makes; the answer arrives on the running loop."""
        call = self.thread.begin(make, name=name)
        self._calls[call.future] = call
        call.future.add_done_callback(self._forget)
        return call.future

    def cancel(self, future: Pending) -> None:
        """Cancel a call, before anything that is submitted after this begins."""
        call = self._calls.get(future)
        if call is not None:
            call.thread.cancel(call)
        future.cancel()

    def leave_if_blocked(self, accused: Pending, *, is_overdue: bool) -> None:
        """Leave the loop behind if it stands still, and note whom that holds up.

        `accused` is a call that is given up; cancelling it is left to the caller. Unless its time
        is up it must be the one that blocks: who is only held up may yet be answered. Where nobody
        can be named `accused` is not held up: otherwise nobody would ever count.
        """
        thread = self._thread
        if thread is None or not thread.stands_still:
            return
        blocker = thread.blocker
        if not is_overdue and (blocker is None or blocker.future is not accused):
            return
        self._thread = None
        guilty = accused if blocker is None else blocker.future
        here = [future for future, call in self._calls.items() if call.thread is thread]
        self._held_up.update(future for future in here if future is not guilty)
        if blocker is not None:
            self._blockers.add(guilty)
        for future in here:
            if future is not accused and not future.get_loop().is_closed():
                self.cancel(future)
        thread.leave_behind()
        name = "an asynchronous environment" if blocker is None else blocker.name
        self.warn_once(
            f"{name} blocks",
            f"{name} blocks its event loop: it is left behind, and attempts of others beside it "
            "are made again. Await what takes long in it, or make it synchronous: it then has a "
            "thread",
        )

    def blocks(self, future: Pending) -> bool:
        """Say whether a call blocked the loop."""
        return future in self._blockers

    def is_held_up(self, future: Pending) -> bool:
        """Say whether a call came to nothing because another blocked the loop."""
        return future in self._held_up

    async def settle(self, grace_s: float) -> None:
        """Give calls that were cancelled a while to end."""
        if self._thread is not None and not self._thread.stands_still:
            waiting = self.submit(self._thread.rest, name="the end")
            if (await asyncio.wait({waiting}, timeout=grace_s))[1]:
                self.cancel(waiting)

    def _forget(self, future: Pending) -> None:
        self._calls.pop(future, None)


def _print(text: str) -> None:
    sys.stderr.write(f"warning: {text}\n")


SHARED = EnvLoop()
