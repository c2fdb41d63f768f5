"""Trial: games without a model, in one thread under a watch; one that hangs is an error in time.

Such games are many and their calls take microseconds, so they all run in one thread (a thread hop
for each call, as in `rollout.env_threads`, would cost more than the games). The caller waits and
sees in the `Watch` which call is in progress and since when. A call over its limit raises an
EnvError and the daemon thread is abandoned. Making and closing are calls like the others, except
that an environment that cannot close loses no game that was played.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from rollart.clock import SystemClock
from rollart.envs.registry import close_env, load_env_class, make_env
from rollart.errors import ConfigError, EnvError, describe_error
from rollart.ports import Env
from rollart.types import Json

T = TypeVar("T")
_CLOSE_S = 10.0
"""Longest to wait for an environment to close; less if a step may take less."""


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    what: str
    limit_s: float
    since_s: float

    def __str__(self) -> str:
        return f"{self.what} took more than {self.limit_s:g} s"


class Watch:
    """Which call of an environment is in progress, for another thread to see.

    Example: `watch = Watch(reset_s=30.0, step_s=5.0)`, then `with watch.over("step"): ...`
    """

    def __init__(self, *, reset_s: float, step_s: float) -> None:
        """Take the limit of making and of a reset, and that of any other call."""
        self.clock = SystemClock()
        self.call: _Call | None = None
        self.left_open = ""
        """Why an environment did not close; empty if it did."""
        self._limits_s = {"__init__": reset_s, "reset": reset_s, "close": min(step_s, _CLOSE_S)}
        self._step_s = step_s

    @contextmanager
    def over(self, what: str) -> Generator[None]:
        """Watch over a call."""
        self.call = _Call(what, self._limits_s.get(what, self._step_s), self.clock.now())
        try:
            yield
        finally:
            self.call = None

    @property
    def shortest_s(self) -> float:
        """Return the shortest limit: no call that begins now is overdue before."""
        return min(self._step_s, *self._limits_s.values())


def run_watched(
    watch: Watch, make: Callable[[], Env], games: Callable[[Env], Coroutine[Any, Any, T]]
) -> T:
    """Make an environment, play games with it and close it, all in one thread.

    Raises EnvError as soon as a call takes too long, unless the games are over by then.
    """
    ended = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with watch.over("__init__"):
                env = make()
            loop = asyncio.Runner()
            try:
                results.append(loop.run(games(env)))
            except BaseException as error:
                errors.append(error)
            with watch.over("close"), loop:
                try:
                    loop.run(close_env(env))
                except BaseException as error:
                    watch.left_open = f"close raised {describe_error(error)}"
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True, name="games").start()
    hung = _wait(watch, ended)
    if hung is not None and not results and not errors:
        raise EnvError(str(hung))
    if hung is not None:
        watch.left_open = f"{hung} and was not waited for"
    if results:
        return results[0]
    raise errors[0]


def _wait(watch: Watch, ended: threading.Event) -> _Call | None:
    """Wait for the end; return the call that took too long, if one did."""
    while True:
        call, most_s = watch.call, watch.shortest_s
        left_s = inf if call is None else call.since_s + call.limit_s - watch.clock.now()
        if ended.wait(max(0.0, min(left_s, most_s))):
            return None
        if call is not None and watch.call is call and left_s <= most_s:
            return call


def try_env(name: str, *, options: Mapping[str, Json], limit_s: float) -> Env:
    """Make an environment and close it, to see that it can be made; return it."""
    load_env_class(name)  # here and not in a thread, where some modules cannot be imported

    async def look(env: Env) -> Env:
        return env

    watch = Watch(reset_s=limit_s, step_s=limit_s)
    try:
        return run_watched(watch, lambda: make_env(name, options=options), look)
    except EnvError as error:
        raise ConfigError("env.name", name, str(error)) from error
