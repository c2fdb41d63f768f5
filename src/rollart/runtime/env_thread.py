"""A thread that runs the calls of one environment, in order, and can be left behind.

An answer reaches the event loop that asked as a value, a future of that loop. The thread is a
daemon: one that hangs keeps neither the loop nor the end of the process waiting.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

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
