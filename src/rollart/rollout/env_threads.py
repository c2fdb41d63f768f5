"""EnvThreads: the threads of one process that run the code of environments.

Nothing an environment does holds up anyone else, because its code never runs where others wait:
every call runs in a daemon thread, and its answer arrives as a value in a future of the event loop
that asked. A call that does not return in time costs the thread it is in, which nobody joins, not
even the end of the process.

- Shared threads make and close environments and run parsers. While calls wait, more threads start,
  so a call that hangs delays others by `_GROW_S`; calls that do not block need one thread.
- A synchronous environment keeps the thread that made it until it is closed: what it holds may
  belong to that thread, as a connection to SQLite does.
- Asynchronous environments share one event loop (`LoopThread`), so that they may share a client.
  If one blocks the loop until the time of a call is up, another loop replaces it: the blocker
  fails, and the other calls there end in `HeldUpError`, so their attempts are retried uncounted.

Environments that declare themselves `inline` run on the loop of the driver and need no thread.
"""

import asyncio
import contextlib
import inspect
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast
from weakref import WeakKeyDictionary

from rollart.clock import SystemClock
from rollart.errors import printable

_GROW_S = 0.02
"""While calls wait, so often more threads start: one, then two, then four."""
_IDLE_S = 10.0
"""A shared thread that served nothing for so long ends."""
_BEAT_S = 0.25
_STILL_S = 1.0
"""An event loop that has not run its heartbeat for so long is blocked."""
_LINGER_S = 60.0
"""How long a replaced loop serves on, once it runs again, so that environments close there."""
RAISED = (Exception, SystemExit, asyncio.CancelledError)
"""What an environment may raise; a cancellation from inside it does not cancel the attempt."""

Answer = tuple[Any, BaseException | None]
"""What a call returned, or what it raised; as a value, because futures refuse StopIteration."""


_begun: "set[Call]" = set()
"""Holds asynchronous calls until they end: an event loop holds its tasks only weakly."""


class ExpiredError(Exception):
    """A call did not return within its time limit."""


class HeldUpError(Exception):
    """A call came to nothing because another environment blocked the event loop."""


class BlockedError(Exception):
    """A call blocked the event loop instead of awaiting."""


class Call:
    """A call that runs elsewhere; its answer arrives in `future`, on the loop that asked.

    Example: `value, error = await EnvThreads().submit(lambda: env.step("left")).future`
    """

    def __init__(
        self,
        run: Callable[[], object],
        *,
        name: str = "",
        unwanted: Callable[[Any], None] | None = None,
    ) -> None:
        """Take the call, its name in warnings, and what gets a value nobody waits for."""
        self.run = run
        self.name = name
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.home: LoopThread | None = None
        self.task: asyncio.Task[Answer] | None = None
        self._unwanted = unwanted

    def begin(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Task[Answer]":
        """Run an asynchronous call as a task of a loop, from there."""
        self.task = loop.create_task(_answer(cast("Callable[[], Awaitable[object]]", self.run)))
        self.task.add_done_callback(self._reply_of)
        _begun.add(self)
        return self.task

    def reply(self, answer: Answer) -> None:
        """Send the answer, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop that asked was closed
            self.future.get_loop().call_soon_threadsafe(self.settle, answer)

    def settle(self, answer: Answer) -> None:
        """Give the answer, on the loop that asked."""
        if not self.future.done():
            self.future.set_result(answer)
        elif self._unwanted is not None and answer[1] is None:
            self._unwanted(answer[0])

    def drop(self) -> None:
        """Stop waiting for the answer, which may have arrived this moment."""
        if not self.future.cancel() and not self.future.cancelled():
            self.settle(self.future.result())

    def cancel(self) -> None:
        """Cancel an asynchronous call before anything that begins on its loop after this."""
        if self.home is not None:
            self.home.post(self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _reply_of(self, task: "asyncio.Task[Answer]") -> None:
        _begun.discard(self)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.reply(task.result() if error is None else (None, error))


async def _answer(run: Callable[[], Awaitable[object]]) -> Answer:
    try:
        return await run(), None
    except RAISED as error:
        return None, error


class EnvThread:
    """A thread for the calls of one environment, in order; borrowed from the first to the release.

    Example: `thread = EnvThread(SHARED); call = thread.submit(make); thread.release()`
    """

    def __init__(self, threads: "EnvThreads") -> None:
        self._threads = threads
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._is_borrowed = False

    def submit(
        self, run: Callable[[], object], *, unwanted: Callable[[Any], None] | None = None
    ) -> Call:
        """Run a call after those before it."""
        call = Call(run, unwanted=unwanted)
        self._calls.put(call)
        if not self._is_borrowed:
            self._is_borrowed = True
            self._threads.lend(self)
        return call

    def release(self) -> None:
        """Give the thread back after the calls it was given, if they ever return."""
        self._calls.put(None)

    def serve(self) -> None:
        """Run calls until the release; in the thread itself."""
        while self._serve_next():
            if self._calls.empty():
                self._threads.start_if_needed()  # this one stays with its environment

    def _serve_next(self) -> bool:
        # A function of its own, so that an idle thread holds neither a call nor its environment.
        call = self._calls.get()
        if call is None:
            return False
        try:
            answer = call.run(), None
        except BaseException as error:
            answer = None, error
        call.reply(answer)
        return True


class LoopThread:
    """An event loop in a daemon thread; `blocker` names the call that keeps it from running."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        """Calls that have not ended, begun or not."""
        self.is_replaced = False
        """Whether it blocked: environments that began here are closed here, not used again."""
        self.is_over = False
        """Whether it runs nothing any more."""
        self._clock = SystemClock()
        self._beat_s = self._clock.now()
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)
        self._call_of: WeakKeyDictionary[asyncio.Task[Any], Call] = WeakKeyDictionary()
        """The call that each task belongs to, also tasks that a call started itself."""
        threading.Thread(target=self._serve, daemon=True, name="async-envs").start()

    @property
    def is_blocked(self) -> bool:
        """Whether something has kept the loop from running for a while."""
        return self._clock.now() - self._beat_s > _STILL_S

    @property
    def blocker(self) -> Call | None:
        """The call whose task runs at this moment; None for a bare callback."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._call_of.get(task)

    def submit(
        self, work: Callable[[], Awaitable[object]] | Awaitable[object], *, name: str
    ) -> Call:
        """Await some work, or what a function makes, which is then called on this loop too."""
        call = Call(work if callable(work) else lambda: work, name=name)
        call.home = self
        self.calls.add(call)
        self.post(lambda: self._begin(call, work))
        return call

    def post(self, callback: Callable[[], object]) -> None:
        """Run a callback on this loop, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: nothing runs there
            self._loop.call_soon_threadsafe(callback)

    def replace(self) -> None:
        """Cancel all calls and end the thread a while after the loop runs again, if ever."""
        self.is_replaced = True
        for call in list(self.calls):
            call.cancel()
        self.post(lambda: self._loop.call_later(_LINGER_S, self._stop))

    async def rest(self) -> None:
        """Return, on this loop, when all other calls have ended."""
        tasks = {call.task for call in list(self.calls) if call.task} - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, call: Call, work: object) -> None:
        if call.future.done():  # cancelled before it began
            self.calls.discard(call)
            if inspect.iscoroutine(work):
                work.close()  # or Python warns that it was never awaited
            return
        task = call.begin(self._loop)
        self._call_of[task] = call
        task.add_done_callback(lambda _task: self.calls.discard(call))

    def _stop(self) -> None:
        self.is_over = True
        self._loop.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._beat()
        while not self.is_over:
            with contextlib.suppress(BaseException):  # a task called sys.exit: asyncio passes it on
                self._loop.run_forever()
        self._loop.close()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(work, loop=loop, **options)
        parent = asyncio.current_task(loop)
        call = None if parent is None else self._call_of.get(parent)
        if call is not None:
            self._call_of[task] = call
        return task

    def _beat(self) -> None:
        self._beat_s = self._clock.now()
        self._loop.call_later(_BEAT_S, self._beat)


class EnvThreads:
    """The shared threads and the event loop of environments; replaces those that hang."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[EnvThread] = queue.SimpleQueue()
        self._growing: asyncio.AbstractEventLoop | None = None
        """The loop whose timer starts more threads while calls wait."""
        self._is_started = False
        self._loop: LoopThread | None = None
        self._warned: set[str] = set()
        self._warn = _print

    @property
    def loop(self) -> LoopThread:
        """Where asynchronous calls run now."""
        if self._loop is None:
            self._loop = LoopThread()
        return self._loop

    def submit(self, run: Callable[[], object]) -> Call:
        """Run a call in any thread."""
        thread = EnvThread(self)
        call = thread.submit(run)
        thread.release()
        return call

    def lend(self, thread: EnvThread) -> None:
        """Let the first thread that is free serve the calls of an environment."""
        self._waiting.put(thread)
        if not self._is_started:
            self.start_if_needed()
        loop = asyncio.get_running_loop()
        if self._growing is not loop:
            self._growing = loop
            loop.call_later(_GROW_S, self._grow, loop, 1)

    def start_if_needed(self, most: int = 1) -> bool:
        """Start threads, at most so many, if calls wait for one; from any thread."""
        needed = min(self._waiting.qsize(), most)
        for _ in range(needed):
            self._is_started = True
            threading.Thread(target=self._serve, daemon=True, name="env").start()
        return needed > 0

    def expire(self, call: Call) -> None:
        """End a call whose time is up, and find out why: itself, or who blocks its loop."""
        if call.future.done():
            return
        error: Exception = ExpiredError()
        if call.home is not None and call.home is self._loop and call.home.is_blocked:
            error = self._replace_loop(call.home, accused=call)
        call.settle((None, error))
        call.cancel()

    def give_up(self, call: Call) -> None:
        """Cancel a call nobody waits for; replace the loop if this call blocks it."""
        call.drop()
        home = call.home
        # One that is only held up by a pause of another may yet be answered, so it replaces none.
        if home is not None and home is self._loop and home.is_blocked and home.blocker is call:
            self._replace_loop(home, accused=call)
        call.cancel()

    async def settle(self, grace_s: float) -> None:
        """Give asynchronous calls that were cancelled a while to end."""
        if self._loop is not None and not self._loop.is_blocked:
            call = self._loop.submit(self._loop.rest, name="the end of the run")
            await asyncio.wait({call.future}, timeout=grace_s)
            self.give_up(call)

    def listen(self, warn: Callable[[str], None]) -> Callable[[], None]:
        """Send warnings to `warn` from now on, each at least once; return what undoes that."""
        before = self._warn, self._warned
        self._warn, self._warned = warn, set()

        def undo() -> None:
            self._warn, self._warned = before

        return undo

    def warn_once(self, key: str, text: str) -> None:
        """Send a warning unless one with its key was sent."""
        if key not in self._warned:
            self._warned.add(key)
            self._warn(text)

    def _replace_loop(self, home: LoopThread, *, accused: Call) -> Exception:
        """Replace a blocked loop; return the error of the call whose end brought this up.

        Where the blocker cannot be named (a bare callback) the accused counts as timed out:
        otherwise no attempt would ever count.
        """
        blocker, self._loop = home.blocker, None
        here = asyncio.get_running_loop()
        for call in list(home.calls):
            answer = None, BlockedError() if call is blocker else HeldUpError()
            if call.future.get_loop() is not here:
                call.reply(answer)
            elif call is not accused:
                call.settle(answer)  # at once: its own time may be up in this very tick
        home.replace()
        name = "an asynchronous environment" if blocker is None else blocker.name
        self.warn_once(
            f"{name} blocks",
            f"{name} blocks its event loop: another loop replaces it, and the attempts of other "
            "environments there are retried. Await what takes long, or make the environment "
            "synchronous: it then has a thread of its own",
        )
        if blocker is None:
            return ExpiredError()
        return BlockedError() if blocker is accused else HeldUpError()

    def _grow(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        if self.start_if_needed(most):
            loop.call_later(_GROW_S, self._grow, loop, 2 * most)
        else:
            self._growing = None

    def _serve(self) -> None:
        # A call that arrives as the last thread ends waits for the timer, which starts another.
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.get(timeout=_IDLE_S).serve()


def _print(text: str) -> None:
    sys.stderr.write(f"warning: {printable(text)}\n")


SHARED = EnvThreads()
"""The threads of this process: asynchronous environments share clients, so they share one loop."""
