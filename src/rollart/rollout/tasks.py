"""Tasks: run asyncio tasks so that none outlives its use and none keeps the process alive.

- `together` runs coroutines that are of use only if all succeed: when one fails, the others have
  ended before its error is raised, so none runs on while what it uses is being closed.
- `run` is `asyncio.run` with a time limit at the end. `asyncio.run` waits for every task that it
  cancels; one that swallows its cancellation would keep the process for ever. Here tasks get
  `grace_s` to end; after that the loop is closed without them. Ctrl-C cancels the main task,
  unless that handles the signal itself.
- `watch_stalls` warns when something blocks the event loop that everything in this process shares.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from rollart.clock import SystemClock

T = TypeVar("T")


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once; when one fails or this is cancelled, end the others before raising."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await end_tasks(tasks)
        raise


async def end_tasks(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancel tasks and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


GRACE_S = 5.0


def run(main: Coroutine[Any, Any, T], *, grace_s: float = GRACE_S) -> T:
    """Run a coroutine to its end in a new loop; give other tasks `grace_s` to end after it."""
    loop = asyncio.new_event_loop()
    task, interrupts = loop.create_task(main), list[bool]()

    def interrupt() -> None:
        interrupts.append(True)
        task.cancel()

    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGINT)
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if interrupts:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if before is not None:
            signal.signal(signal.SIGINT, before)
        try:
            loop.run_until_complete(_end_tasks(grace_s))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


async def _end_tasks(grace_s: float) -> None:
    """Cancel all other tasks; say nothing of those that ignore it, then or later."""
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    others = {task for task in asyncio.all_tasks(loop) if task is not this}
    for task in others:
        task.cancel()
    if others and (await asyncio.wait(others, timeout=grace_s))[1]:
        loop.set_exception_handler(_say_nothing)


def _say_nothing(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    pass


EVERY_S = 1.0
STALL_S = 5.0


async def watch_stalls(
    warn: Callable[[str], None], *, every_s: float = EVERY_S, stall_s: float = STALL_S
) -> None:
    """Warn once, if the loop is blocked for longer than it ever should be."""
    clock = SystemClock()
    while True:
        slept_s = clock.now()
        await asyncio.sleep(every_s)
        late_s = clock.now() - slept_s - every_s
        if late_s > stall_s:
            return warn(
                f"the event loop was blocked for {late_s:.0f} s, and everything with it: does an "
                "environment that declares `inline = True` block? Without that it gets a thread"
            )
