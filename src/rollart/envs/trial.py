"""Trial: games without a model, by a random or a noisy player, in one thread under a watch.

They try an environment, measure chance level, and make demonstrations for warm starts. An episode
is determined by the environment, the player and the seed.

Such games are many and their calls take microseconds, so they all run in one thread (a thread hop
for each call, as in `rollout.env_threads`, would cost more than the games). The caller waits and
sees in the `Watch` which call is in progress and since when. A call over its limit raises an
EnvError and the daemon thread is abandoned. Making and closing are calls like the others, except
that an environment that cannot close loses no game that was played.
"""

import asyncio
import inspect
import string
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from rollart.clock import SystemClock
from rollart.envs.registry import close_env, load_env_class, make_env
from rollart.errors import ConfigError, EnvError, describe_error
from rollart.ports import Env
from rollart.rollout.env_contract import check_reset, check_step
from rollart.seeds import derive_seed
from rollart.types import Json, StopReason

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


_TEXT_LENGTH = 8


@runtime_checkable
class Suggesting(Protocol):
    """An environment that can suggest a good action.

    Example:
        env = NumberGuess(largest=10)
        env.reset(0, {})
        env.suggest() == "5"

    """

    def suggest(self) -> "str | Awaitable[str]":
        """Return a good action for the current state."""
        ...


class BaselinePlayer(Protocol):
    """Chooses actions without a model.

    Example:
        RandomPlayer().act(env, {"actions": ["up", "down"]}, Random(0))  # "up" or "down"

    """

    def act(self, env: Env, info: Mapping[str, Json], random: Random) -> "str | Awaitable[str]":
        """Return the next action."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPlayer:
    """Draws from `info["actions"]`, or writes a few random letters when there is none.

    Example:
        RandomPlayer().act(env, {"actions": ["left"]}, Random(0)) == "left"

    """

    def act(self, env: Env, info: Mapping[str, Json], random: Random) -> str:
        """Return a random action."""
        actions = info.get("actions")
        if isinstance(actions, list | tuple) and actions:
            return str(random.choice(actions))
        letters = string.ascii_lowercase + string.digits + " "
        return "".join(random.choices(letters, k=random.randint(1, _TEXT_LENGTH)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyPlayer:
    """Takes the environment's suggestion, or with probability `noise` a random action.

    Example:
        NoisyPlayer(noise=0.0).act(env, info, Random(0)) == env.suggest()

    """

    noise: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise <= 1.0:
            raise ConfigError("model.warm_start_noise", self.noise, "must be between 0 and 1")

    def act(self, env: Env, info: Mapping[str, Json], random: Random) -> "str | Awaitable[str]":
        """Return the suggested or a random action."""
        if random.random() < self.noise:
            return RandomPlayer().act(env, info, random)
        if not isinstance(env, Suggesting):
            name = type(env).__name__
            fix = "has no method suggest() -> str, so only the random player can play it"
            raise ConfigError("env.name", name, fix)
        return env.suggest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """The record of one episode: `observations` has one entry more than `actions`.

    Example:
        Play(observations=("1 to 10", "higher", "right"), actions=("5", "8"),
             rewards=(0.0, 1.0), stop="terminated", success=True)

    """

    observations: tuple[str, ...]
    actions: tuple[str, ...]
    rewards: tuple[float, ...]
    stop: StopReason
    success: bool


async def play(
    env: Env,
    player: BaselinePlayer,
    *,
    seed: int,
    max_turns: int,
    index: int | None = None,
    watch: Watch | None = None,
) -> Play:
    """Play one episode of a sync or async environment: the training task with this index.

    Without an index, the seed is the index.
    """
    random = Random(derive_seed(seed, 1))
    over = nullcontext if watch is None else watch.over
    task: dict[str, Json] = {"split": "train", "index": seed if index is None else index}
    with over("reset"):
        observation, info = check_reset(await _settle(env.reset(seed, task)))
    observations, actions, rewards = [observation], list[str](), list[float]()
    stop: StopReason = "max_turns"
    legal: Json = None
    for _ in range(max_turns):
        legal = info.get("actions", legal)
        with over("suggest"):
            action = await _settle(player.act(env, {**info, "actions": legal}, random))
        if not isinstance(action, str):
            raise EnvError(f"suggest() must return a str; it returned {action!r}")
        with over("step"):
            result = check_step(await _settle(env.step(action)))
        observation, reward, terminated, truncated, info = result
        observations.append(observation)
        actions.append(action)
        rewards.append(reward)
        if terminated or truncated:
            stop = "terminated" if terminated else "truncated"
            break
    return Play(
        observations=tuple(observations),
        actions=tuple(actions),
        rewards=tuple(rewards),
        stop=stop,
        success=_has_succeeded(info, stop, rewards),
    )


def _has_succeeded(info: Mapping[str, Json], stop: StopReason, rewards: list[float]) -> bool:
    success = info.get("success")
    if success is not None:
        return bool(success)
    return stop == "terminated" and sum(rewards) > 0


async def _settle(value: object) -> object:
    """Return the value of a sync environment; await that of an async one."""
    if inspect.isawaitable(value):
        return await cast("Awaitable[object]", value)
    return value
