"""A robot task as an environment of a run: `[tasks.NAME] env = "robot"`.

An action is a chunk of the robot's actions, carried out one after another, and an observation the
states after each of them: one call for several steps of the simulator. An episode ends at its
first success. It pays 1 for the success, and by `reward` more:

    success    nothing
    dense      what the simulator pays in each step
    progress   of Meta-World: up to 0.5 by the best step so far, of the 10 a step can pay; with a
               success, 1 in all. Attempts that all fail then differ by how far they came.

Training and held-out tasks get reset seeds of ranges that do not overlap, and that no demonstration
has. With `processes`, the simulators are in child processes: see env_process.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from rollart.errors import ConfigError
from rollart_robot.env_process import RemoteTaskEnv, run_child
from rollart_robot.envs import Floats, make_env
from rollart_robot.tasks import find_task, reset_seeds

Reward = Literal["success", "dense", "progress"]
_PROGRESS = 0.5
"""What an attempt that fails can be paid for its progress."""
_MOST_REWARD = 10.0
"""Of a step in Meta-World."""


class RobotTaskEnv:
    """Plays one robot task.

    Example:
        >>> env = RobotTaskEnv(task="reach")
        >>> states, info = env.reset(7, {"split": "train"})
        >>> states, reward, terminated, truncated, info = env.step(chunk)  # [3, 4]

    """

    arrays = True

    def __init__(
        self,
        *,
        task: str,
        reward: Reward = "success",
        slot: int = 0,
        processes: int = 0,
        hung_slots: Sequence[int] = (),
        slow_slots: Mapping[str, float] | None = None,
    ) -> None:
        """Take the task, how it pays, and how many processes compute the environments (0: threads).

        `hung_slots` and `slow_slots` (seconds a step, by slot) are faults for tests: environments
        that never answer, or late.
        """
        found = find_task(task)
        if reward not in get_args(Reward):
            fix = 'must be "success", "dense" or "progress"'
            raise ConfigError("env.options.reward", reward, fix)
        if reward == "progress" and found.suite != "metaworld":
            fix = "only Meta-World's rewards have a known range: use success or dense"
            raise ConfigError("env.options.reward", reward, fix)
        if processes < 0:
            raise ConfigError("env.options.processes", processes, "must be at least 0")
        faults = {"hung_slots": list(hung_slots), "slow_slots": dict(slow_slots or {})}
        options = {"task": found.name, "reward": reward, "slot": slot, **faults}
        self._remote = RemoteTaskEnv(child=slot % processes, options=options) if processes else None
        self._env = None if processes else make_env(found)
        self._reward: Reward = reward
        self._paid = 0.0
        self._hangs = slot in hung_slots
        self._delay_s = (slow_slots or {}).get(str(slot), 0.0)

    def reset(self, seed: int, task: Mapping[str, Any]) -> tuple[Floats, dict[str, Any]]:
        """Begin an episode; return its first state as [1, S]."""
        if self._env is None:
            return self._remote_env.reset(seed, task)
        purpose = "evaluation" if task.get("split") == "test" else "training"
        (own,) = reset_seeds(purpose, seed=seed, count=1)
        self._paid = 0.0
        return self._env.reset(own)[None], {}

    def step(self, action: npt.ArrayLike) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Carry out a chunk [K, A]; return the states after its actions, at most [K, S]."""
        if self._env is None:
            return self._remote_env.step(np.asarray(action, dtype=np.float32))
        while self._hangs:
            time.sleep(1.0)
        states, total = list[Floats](), 0.0
        is_won = terminated = truncated = False
        for each in np.asarray(action, dtype=np.float32):
            if self._delay_s:
                time.sleep(self._delay_s)
            state, reward, terminated, truncated, info = self._env.step(each)
            states.append(state)
            is_won = info["success"]
            total += self._pay(reward, is_won=is_won)
            if is_won or terminated or truncated:
                break
        is_over = is_won or terminated
        return np.stack(states), total, is_over, truncated and not is_over, {"success": is_won}

    def _pay(self, reward: float, *, is_won: bool) -> float:
        """Return what a step is worth that the simulator pays `reward` for."""
        match self._reward:
            case "success":
                return float(is_won)
            case "dense":
                return reward + is_won
            case "progress":
                worth = 1.0 if is_won else _PROGRESS * min(max(reward / _MOST_REWARD, 0.0), 1.0)
                gained = max(0.0, worth - self._paid)
                self._paid += gained
                return gained

    def close(self) -> None:
        """Free the simulator."""
        (self._env or self._remote_env).close()

    @property
    def _remote_env(self) -> RemoteTaskEnv:
        assert self._remote is not None
        return self._remote


if __name__ == "__main__":
    run_child(sys.argv[1], RobotTaskEnv)
