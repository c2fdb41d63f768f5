"""Meta-World V3: a Sawyer arm, 50 tasks, and the scripted expert of each.

A state has 21 numbers: hand position and gripper (4, the robot's own), position and rotation of up
to two objects (14, zeros where there is no second), and the goal (3). The simulator's own
observation has 39: it repeats the first 18 as they were a step earlier, which a policy that sees
two states does not need. The goal is part of the state, as in the multi-task benchmarks, because a
policy without it cannot know where to put the object; Meta-World hides it (zeros) by default.

What is done differently from `metaworld.make_mt_envs`:
- One environment is built, not 50 goals sampled. Its compiled model is kept and copied for the next
  environment of the task: 15 ms instead of 200.
- Object and goal are drawn from the seed of the reset. Meta-World ignores the seed given to
  `reset`, and draws from numpy's global generator.
- A reset runs twice. The first writes the new positions into the model, the second starts from
  clean data with them; otherwise the hand would be brought to its place among the objects of the
  last episode, and the first state would depend on it.
- Contacts of the gripper with the object are looked up in arrays: Meta-World makes an object of
  every contact of the scene, twice a step, which took up to half of its time.
- The goal is clipped to its bounds in the first state too, as Meta-World does in all later ones.
"""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.policies import ENV_POLICY_MAP

from rollart_robot.cameras import Camera, View
from rollart_robot.envs import Floats, Image, checked_action
from rollart_robot.point_clouds import Workspace

_mujoco: Any = mujoco
"""Its functions are in compiled modules that a type checker cannot read."""
_CAMERA = "corner4"
"""Where DP3 puts its camera; point clouds are what it sees."""
_VIEW = View(look_at=(0.0, 0.62, 0.12), distance_m=1.25, azimuth=150.0, elevation=-28.0)
"""Pictures are for people: from nearer, so that the object and its goal are large enough."""
_WORKSPACE = Workspace(low=(-0.6, 0.3, 0.005), high=(0.6, 0.985, 0.7))
_FRAME = 18
"""Numbers about the present at the start of Meta-World's observation; the next 18 repeat them."""


class MetaWorldEnv:
    """One Meta-World task.

    Example:
        >>> env = MetaWorldEnv("pick-place")
        >>> env.reset(seed=7).shape
        (21,)

    """

    state_size = 21
    robot_size = 4
    action_size = 4
    max_steps = 200

    def __init__(self, task: str) -> None:
        self.task = task
        env = _shared_model(ALL_V3_ENVIRONMENTS[f"{task}-v3"])()
        env._partially_observable = False
        env._freeze_rand_vec = False
        env.seeded_rand_vec = True
        env._set_task_called = True
        # Computed for a hidden goal, and cached.
        del env.sawyer_observation_space
        self._env = env
        self._steps = 0
        self._camera = Camera(env.model, env.data, name=_CAMERA, view=_VIEW)
        self.observation: npt.NDArray[np.float64] = np.zeros(39)
        """Meta-World's own observation, which its experts act on."""

    def reset(self, seed: int) -> Floats:
        """Draw object and goal from the seed."""
        env = self._env
        for _ in range(2):
            env.np_random = np.random.default_rng(seed)
            _mujoco.mj_resetData(env.model, env.data)
            env.reset_model()
        self._steps = env.curr_path_length = 0
        # Meta-World keeps a frame from before the reset as the one a step earlier.
        env._prev_obs = env._get_curr_obs_combined_no_goal()
        space = env.sawyer_observation_space
        self.observation = np.clip(env._get_obs(), space.low, space.high)
        return self._state()

    def step(self, action: npt.ArrayLike) -> tuple[Floats, float, bool, bool, Mapping[str, bool]]:
        """Move the hand by up to 1 cm in each direction, and open or close the gripper."""
        given = checked_action(action, self.action_size)
        self.observation, reward, _, _, info = self._env.step(given)
        self._steps += 1
        success = {"success": bool(info["success"])}
        return self._state(), float(reward), False, self._steps >= self.max_steps, success

    def render(self, width: int = 320, height: int = 240) -> Image:
        """Draw the scene."""
        return self._camera.picture(width, height)

    def points(self, count: int = 512) -> Floats:
        """Return the scene above the table as points."""
        return self._camera.points(count, _WORKSPACE)

    def close(self) -> None:
        """Free the OpenGL contexts."""
        self._camera.close()

    def _state(self) -> Floats:
        parts = [self.observation[:_FRAME], self.observation[2 * _FRAME :]]
        return np.concatenate(parts).astype(np.float32)


class MetaWorldExpert:
    """The scripted policy that Meta-World ships for a task.

    Example:
        >>> env = MetaWorldEnv("reach")
        >>> MetaWorldExpert(env).act(env.reset(seed=7)).shape
        (4,)

    """

    def __init__(self, env: MetaWorldEnv) -> None:
        self._env = env
        self._policy = ENV_POLICY_MAP[f"{env.task}-v3"]()

    def reset(self, seed: int) -> None:
        """Do nothing: the scripts keep no state."""

    def act(self, state: Floats) -> Floats:
        """Return the action for the present observation of the environment."""
        with warnings.catch_warnings():
            # "Constant(s) may be too high": actions beyond [-1, 1], which are clipped.
            warnings.simplefilter("ignore")
            action = self._policy.get_action(self._env.observation)
        return np.clip(np.asarray(action, dtype=np.float32), -1.0, 1.0)


_MODELS = dict[str, Any]()
"""Compiled models by file; environments get copies, because a reset writes into its model."""


def _shared_model(kind: type[Any]) -> type[Any]:
    """Return a subclass that copies the compiled model instead of compiling it again."""

    def initialize(self: Any) -> tuple[Any, Any]:
        if self.fullpath not in _MODELS:
            _MODELS[self.fullpath] = kind._initialize_simulation(self)[0]
        model = copy.copy(_MODELS[self.fullpath])
        return model, _mujoco.MjData(model)

    methods = {"_initialize_simulation": initialize, "touching_object": _is_touching}
    return type(kind.__name__, (kind,), methods)


def _is_touching(env: Any, object_geom_id: int) -> bool:
    """Say whether both pads of the gripper press on an object, as `touching_object` does."""
    pairs, first_rows = env.data.contact.geom, env.data.contact.efc_address
    of_object = (pairs == object_geom_id).any(axis=1)
    for pad in ("leftpad_geom", "rightpad_geom"):
        is_of_both = of_object & (pairs == env.data.geom(pad).id).any(axis=1)
        if not sum(env.data.efc_force[row] for row in first_rows[is_of_both]) > 0:
            return False
    return True
