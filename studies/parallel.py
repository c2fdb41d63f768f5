"""Runs independent simulations in several processes.

Results come in the order of the items, so the number of processes changes nothing but the time.
"""

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from rollart.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_all(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    jobs: int,
    progress: Callable[[str], None],
) -> list[Result]:
    """Return `function(item)` for each item, in order; `function` must be of a module."""
    if jobs == 1:
        results: list[Result] = []
        for number, each in enumerate(items):
            progress(f"{number} of {len(items)} runs, now {each}")
            results.append(function(each))
        return results
    with ProcessPoolExecutor(
        min(jobs, len(items)), mp_context=get_context("spawn"), initializer=_ignore_interrupts
    ) as pool:
        futures = [pool.submit(function, each) for each in items]
        try:
            _await(futures, items, progress)
        except BrokenProcessPool as error:
            raise UserError(
                "a simulation process died, perhaps because memory ran out: "
                "use fewer processes, e.g. --jobs 1"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _await(
    futures: Sequence[Future[Result]], items: Sequence[Item], progress: Callable[[str], None]
) -> None:
    names = {future: str(each) for future, each in zip(futures, items, strict=True)}
    for number, future in enumerate(as_completed(futures), start=1):
        future.result()
        progress(f"{number} of {len(futures)} runs, last {names[future]}")


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C in child processes: the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
