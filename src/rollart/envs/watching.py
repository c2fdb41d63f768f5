"""Playing under watch: an environment that hangs is left behind, with the thread it hangs in.

Games without a model are many and their calls short, so they all run in one thread; whoever waits
for it knows which call is under way, and since when.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from rollart.clock import SystemClock
from rollart.errors import EnvError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    what: str
    limit_s: float
    since_s: float


class Watch:
    """Which call of an environment is under way, for another thread to see."""

    def __init__(self, *, reset_s: float, step_s: float) -> None:
        """Take the longest a reset may take, and anything else."""
        self.clock = SystemClock()
        self.call: _Call | None = None
        self._reset_s = reset_s
        self._step_s = step_s

    @contextmanager
    def over(self, what: str) -> Generator[None]:
        """Watch over a call."""
        limit_s = self._reset_s if what == "reset" else self._step_s
        self.call = _Call(what, limit_s, self.clock.now())
        try:
            yield
        finally:
            self.call = None

    @property
    def longest_s(self) -> float:
        """Return what no call may exceed."""
        return max(self._reset_s, self._step_s)


def run_watched(watch: Watch, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run games to their end in a thread; raises EnvError as soon as a call takes too long."""
    done = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work()))
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True, name="games").start()
    while True:
        call = watch.call
        left_s = watch.longest_s if call is None else call.since_s + call.limit_s
        if call is not None:
            left_s -= watch.clock.now()
        if done.wait(max(0.0, left_s)):
            break
        if call is not None and watch.call is call:
            raise EnvError(f"{call.what} took more than {call.limit_s:g} s")
    if errors:
        raise errors[0]
    return results[0]
