"""SerialExecutor: one thread that runs blocking jobs in order and answers on an event loop."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class SerialExecutor:
    """Runs jobs one at a time in a daemon thread of its own.

    Unlike `ThreadPoolExecutor(1)` it holds up neither the interpreter's exit nor `stop`, and keeps
    no job's arguments or result while it waits for the next one.

    Example:
        >>> executor = SerialExecutor("engine-0")
        >>> await executor.submit(engine.step)
        >>> executor.stop()

    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        """Queue a job; its result arrives on the running loop."""
        future: Future[Any] = Future()
        self._jobs.put((future, job))
        return asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the thread after the jobs queued so far."""
        self._jobs.put(None)

    def _run(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        # A function of its own, so that arguments and results are not held while waiting.
        item = self._jobs.get()
        if item is None:
            return False
        future, job = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
        return True
