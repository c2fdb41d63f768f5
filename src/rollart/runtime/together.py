"""Together: work that begins at once and is of use only if all of it succeeds."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

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
