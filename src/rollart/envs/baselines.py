"""Players without a model: a random one and a noisy one, and the loop in which they play.

Used to try an environment, to measure chance level, and to make demonstrations for warm starts. An
episode is determined by the environment, the player and the seed.
"""

import inspect
import string
from collections.abc import Awaitable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from typing import Protocol, cast, runtime_checkable

from rollart.envs.trial import Watch
from rollart.errors import ConfigError, EnvError
from rollart.ports import Env
from rollart.rollout.env_contract import check_reset, check_step
from rollart.seeds import derive_seed
from rollart.types import Json, StopReason

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
