"""Ending: an event loop that no task can keep from ending.

`asyncio.run` waits for every task it cancels; an environment that swallows its cancellation, or
never returns from its `close`, would hold the process for ever. Here they have a while to end in
order; what is left then is left behind with the loop, as are threads that do not return. Ctrl-C
cancels the main task, unless that handles the signal itself, and ends the waiting after it.
"""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
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
