"""A robot task as an environment of a run: `[tasks.NAME] env = "robot"`.

An action is a chunk of the robot's actions, carried out one after another, and an observation the
states after each of them: one call for several steps of the simulator. An episode ends at its
first success. Training and held-out tasks get reset seeds of ranges that do not overlap, and that
no demonstration has.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rollart.errors import ConfigError
from rollart_robot.envs import Floats, make_env
from rollart_robot.tasks import find_task, reset_seeds


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
        reward: Literal["success", "dense"] = "success",
        slot: int = 0,
        hung_slots: Sequence[int] = (),
        slow_slots: Mapping[str, float] | None = None,
    ) -> None:
        """Take the task and how it pays: 1 for a success, or the simulator's own rewards as well.

        `hung_slots` and `slow_slots` (seconds a step, by slot) are faults for tests: environments
        that never answer, or late.
        """
        if reward not in ("success", "dense"):
            raise ConfigError("env.options.reward", reward, 'must be "success" or "dense"')
        self._env = make_env(find_task(task))
        self._is_dense = reward == "dense"
        self._hangs = slot in hung_slots
        self._delay_s = (slow_slots or {}).get(str(slot), 0.0)

    def reset(self, seed: int, task: Mapping[str, Any]) -> tuple[Floats, dict[str, Any]]:
        """Begin an episode; return its first state as [1, S]."""
        purpose = "evaluation" if task.get("split") == "test" else "training"
        (own,) = reset_seeds(purpose, seed=seed, count=1)
        return self._env.reset(own)[None], {}

    def step(self, action: npt.ArrayLike) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Carry out a chunk [K, A]; return the states after its actions, at most [K, S]."""
        while self._hangs:
            time.sleep(1.0)
        states, total = list[Floats](), 0.0
        is_won = terminated = truncated = False
        for each in np.asarray(action, dtype=np.float32):
            if self._delay_s:
                time.sleep(self._delay_s)
            state, reward, terminated, truncated, info = self._env.step(each)
            states.append(state)
            total += reward if self._is_dense else 0.0
            is_won = info["success"]
            if is_won or terminated or truncated:
                break
        total += float(is_won)
        is_over = is_won or terminated
        return np.stack(states), total, is_over, truncated and not is_over, {"success": is_won}

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()
