"""Environments of robot tasks behind one interface.

    env = make_env("pick-place")
    state = env.reset(seed=7)
    state, reward, terminated, truncated, info = env.step(action)

A reset is a function of its seed alone: the same seed gives the same object and goal positions to
the last bit, whatever was played before in that environment or elsewhere in the process. States
and actions are float32; actions are clipped to [-1, 1].

This module imports no simulator. `make_env` loads the one a task needs, and only that task: no
environment of another one is built.
"""

import io
from collections.abc import Mapping
from contextlib import redirect_stderr
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rollart.errors import EnvError, UserError, describe_error
from rollart_robot.tasks import RobotTask, find_task

Floats = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]
"""Pixels, `[height, width, 3]`."""

_PACKAGES = {"gymnasium", "gymnasium_robotics", "imageio", "metaworld", "mujoco", "scipy"}


class RobotEnv(Protocol):
    """One simulated robot with one task.

    Example:
        >>> env = make_env("toy-reach")
        >>> env.reset(seed=3).shape, env.action_size, env.max_steps
        ((6,), 2, 60)

    """

    @property
    def task(self) -> str:
        """Name of the task, for example "pick-place"."""
        ...

    @property
    def state_size(self) -> int:
        """Numbers in a state."""
        ...

    @property
    def robot_size(self) -> int:
        """How many numbers at the start of a state are the robot's own.

        A policy that sees a point cloud gets these; the rest are positions of objects and goals.
        """
        ...

    @property
    def action_size(self) -> int:
        """Numbers in an action."""
        ...

    @property
    def max_steps(self) -> int:
        """Steps after which an episode is truncated."""
        ...

    def reset(self, seed: int) -> Floats:
        """Begin the episode of this seed and return its first state."""
        ...

    def step(self, action: npt.ArrayLike) -> tuple[Floats, float, bool, bool, Mapping[str, bool]]:
        """Act, and return state, reward, terminated, truncated and `{"success": …}`.

        Success does not end an episode: its player decides that.
        """
        ...

    def render(self, width: int = 320, height: int = 240) -> Image:
        """Draw the scene; UserError if this machine cannot."""
        ...

    def points(self, count: int = 512) -> Floats:
        """Return the scene as `count` points `[count, 3]`; UserError if this machine cannot."""
        ...

    def close(self) -> None:
        """Free what drawing needs; the environment must not be used afterwards."""
        ...


def make_env(task: str | RobotTask) -> RobotEnv:
    """Build the environment of a task; UserError if there is no such task, or no simulator."""
    found = find_task(task) if isinstance(task, str) else task
    try:
        match found.suite:
            case "toy":
                from rollart_robot.toy_env import ToyReach  # noqa: PLC0415 of its suite alone

                return ToyReach()
            case "metaworld":
                from rollart_robot.metaworld_env import MetaWorldEnv  # noqa: PLC0415

                return MetaWorldEnv(found.name)
            case "adroit":
                # On import it prints that its dense rewards are not those of another version.
                with redirect_stderr(io.StringIO()):
                    from rollart_robot.adroit_env import AdroitEnv  # noqa: PLC0415
                return AdroitEnv(found.name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise UserError(
            f"{found.name} needs the package {package}: pip install 'rollart[robot]', or use the "
            "task toy-reach, which needs none"
        ) from error
    except (ImportError, RuntimeError, AttributeError) as error:
        # With MUJOCO_GL set to what this machine does not have, `import mujoco` itself fails.
        raise UserError(
            f"MuJoCo cannot be loaded: {describe_error(error)}; without drawing it works with "
            "MUJOCO_GL unset"
        ) from error


def checked_action(action: npt.ArrayLike, size: int) -> Floats:
    """Return an action as float32 in [-1, 1]; EnvError if it is not `size` finite numbers."""
    given = np.asarray(action, dtype=np.float32)
    if given.shape != (size,):
        raise EnvError(f"action has shape {given.shape}: must be ({size},)")
    if not np.isfinite(given).all():
        raise EnvError(f"action {given.tolist()} is not finite: the policy has diverged")
    return np.clip(given, -1.0, 1.0)
