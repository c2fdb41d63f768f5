"""Together: work that begins at once and is of use only if all of it succeeds.

Ending: an event loop that no task can keep from ending.

`asyncio.run` waits for every task it cancels; an environment that swallows its cancellation, or
never returns from its `close`, would hold the process for ever. Here they have a while to end in
order; what is left then is left behind with the loop, as are threads that do not return. Ctrl-C
cancels the main task, unless that handles the signal itself, and ends the waiting after it.

Stalls: says that something blocked the event loop, which everything in this process shares.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from rollart.clock import SystemClock

T = TypeVar("T")


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all at once; when one fails, or nobody waits any more, end the others before it is told.

    So none goes on while what it stands on is being closed.
    """
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

    if threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if interrupts:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        try:
            loop.run_until_complete(_end_tasks(grace_s))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


async def _end_tasks(grace_s: float) -> None:
    """Cancel all other tasks; those that go on in spite of it are not mentioned again."""
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
    """Warn once, if the loop stands still for longer than it ever should."""
    clock = SystemClock()
    while True:
        slept_s = clock.now()
        await asyncio.sleep(every_s)
        late_s = clock.now() - slept_s - every_s
        if late_s > stall_s:
            return warn(
                f"everything stood still for {late_s:.0f} s: an environment that is `inline` "
                "blocks? Without that it has a thread"
            )
