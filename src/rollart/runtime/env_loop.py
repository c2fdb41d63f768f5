"""The event loop of asynchronous environments, in a thread of its own.

An environment that blocks where it should await holds up the others on this loop, and nothing else:
the driver's loop goes on, where every call has its time limit. When the time of a call is up while
the loop stands still, the loop is left behind with what blocks it: the other calls are cancelled,
another loop takes those to come, and environments of the old one are not used again, only closed
there if it ever answers.

There is one for the process (`SHARED`): what environments share with each other, such as a client
or a semaphore, belongs to one loop.
"""

import asyncio
import sys
from collections.abc import Callable
from weakref import WeakSet

from rollart.runtime.env_thread import Answer
from rollart.runtime.loop_thread import Call, LoopThread, Make

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
