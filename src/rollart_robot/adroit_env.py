"""Adroit: a 24-joint hand that opens a door, drives a nail, turns a pen or moves a ball.

States are the simulator's own (39, 46, 45 and 39 numbers: joints of the hand first, then the
objects and the goal), rewards are the dense ones, and an episode has 200 steps. The pen's
episodes are terminated when it falls. There is no scripted expert: `experts.NetworkExpert` reads
the weights of one from a file.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium_robotics.envs.adroit_hand.adroit_door import AdroitHandDoorEnv
from gymnasium_robotics.envs.adroit_hand.adroit_hammer import AdroitHandHammerEnv
from gymnasium_robotics.envs.adroit_hand.adroit_pen import AdroitHandPenEnv
from gymnasium_robotics.envs.adroit_hand.adroit_relocate import AdroitHandRelocateEnv

from rollart_robot.cameras import Camera
from rollart_robot.envs import Floats, Image, checked_action
from rollart_robot.point_clouds import Workspace

_KINDS: Mapping[str, tuple[type[Any], int, str]] = {
    "adroit-door": (AdroitHandDoorEnv, 27, "vil_camera"),
    "adroit-hammer": (AdroitHandHammerEnv, 26, "fixed"),
    "adroit-pen": (AdroitHandPenEnv, 24, "fixed"),
    "adroit-relocate": (AdroitHandRelocateEnv, 30, "fixed"),
}
"""The simulator of each task, how many numbers of its state are joints, and the camera."""
_WORKSPACE = Workspace(low=(-0.5, -0.6, 0.005), high=(0.5, 0.6, 0.7))


class AdroitEnv:
    """One Adroit task.

    Example:
        >>> AdroitEnv("adroit-pen").reset(seed=7).shape
        (45,)

    """

    max_steps = 200

    def __init__(self, task: str) -> None:
        kind, self.robot_size, camera = _KINDS[task]
        self.task = task
        self._env = kind(reward_type="dense")
        self.state_size = int(self._env.observation_space.shape[0])
        self.action_size = int(self._env.action_space.shape[0])
        self._steps = 0
        self._camera = Camera(self._env.model, self._env.data, name=camera)

    def reset(self, seed: int) -> Floats:
        """Draw the positions of objects and goal from the seed."""
        self._steps = 0
        state, _ = self._env.reset(seed=seed)
        return np.asarray(state, dtype=np.float32)

    def step(self, action: npt.ArrayLike) -> tuple[Floats, float, bool, bool, Mapping[str, bool]]:
        """Move the joints."""
        given = checked_action(action, self.action_size)
        state, reward, terminated, _, info = self._env.step(given)
        self._steps += 1
        success = {"success": bool(info["success"])}
        is_late = self._steps >= self.max_steps
        return (
            np.asarray(state, dtype=np.float32),
            float(reward),
            bool(terminated),
            is_late,
            success,
        )

    def render(self, width: int = 320, height: int = 240) -> Image:
        """Draw the scene."""
        return self._camera.picture(width, height)

    def points(self, count: int = 512) -> Floats:
        """Return hand and objects as points."""
        return self._camera.points(count, _WORKSPACE)

    def close(self) -> None:
        """Free the OpenGL contexts."""
        self._camera.close()
