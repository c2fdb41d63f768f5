"""Experts, and the demonstrations they give.

Meta-World's tasks and toy-reach have a scripted expert. Adroit has none: its expert is a small
network whose weights come from a file of plain arrays (`NetworkExpert`), which also works for any
other task whose states and actions have the sizes of the file.

`collect` plays an expert until as many episodes succeeded as were asked; failures are left out.
Its resets come from the seeds of `reset_seeds("demonstrations", …)`, which no evaluation uses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rollart.errors import UserError, describe_error
from rollart_robot.demonstrations import Demonstrations, ExpertEpisode, read_npz
from rollart_robot.envs import Floats, RobotEnv, make_env
from rollart_robot.tasks import find_task, reset_seeds

_SETTLE_STEPS = 5
"""Steps recorded after the first success, so that the policy sees what to do near the goal."""
_TRIES_PER_EPISODE = 5


class Expert(Protocol):
    """Says what to do in each state of an episode.

    Example:
        >>> expert = make_expert(env)
        >>> expert.reset(seed=7)
        >>> expert.act(env.reset(seed=7)).shape
        (4,)

    """

    def reset(self, seed: int) -> None:
        """Begin the episode of this reset seed."""
        ...

    def act(self, state: Floats) -> Floats:
        """Return the action, in [-1, 1]."""
        ...


@dataclass(frozen=True, slots=True)
class NetworkExpert:
    """A network with tanh layers and a linear last one, read from an `.npz` of plain arrays.

    x = (state - in_shift) / (in_scale + 1e-8); x = tanh(layerN.weight @ x + layerN.bias) for all
    layers but the last; action = (last.weight @ x + last.bias) * out_scale + out_shift.

    Example:
        >>> NetworkExpert.load(Path("door.npz"), state_size=39, action_size=28)

    """

    layers: tuple[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]], ...]
    """Weight `[out, in]` and bias of each layer."""
    input_scaling: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
    """Shift and scale of the state."""
    output_scaling: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
    """Shift and scale of the action."""

    @classmethod
    def load(cls, path: Path, *, state_size: int, action_size: int) -> "NetworkExpert":
        """Read an expert; UserError if the file is not one, or is one of another task."""
        arrays = _read_arrays(path)
        count = sum(key.startswith("layer") and key.endswith(".weight") for key in arrays)
        keys = [f"layer{i}.{part}" for i in range(count) for part in ("weight", "bias")]
        missing = {*keys, "layer0.weight", "in_shift", "in_scale", "out_shift", "out_scale"}
        missing -= set(arrays)
        if missing:
            raise _not_an_expert(path, f"it has no {', '.join(sorted(missing))}")
        width = state_size
        for index in range(count):
            weight, bias = arrays[f"layer{index}.weight"], arrays[f"layer{index}.bias"]
            if weight.ndim != 2 or bias.shape != weight.shape[:1]:
                raise _not_an_expert(path, f"layer{index} is {weight.shape} with {bias.shape}")
            if weight.shape[1] != width:
                what = "states" if index == 0 else f"layer{index - 1}'s outputs"
                raise UserError(
                    f"{path}: layer{index} wants {weight.shape[1]} numbers, but the {what} have "
                    f"{width}; use the expert of this task"
                )
            width = weight.shape[0]
        sizes = {"in_shift": state_size, "in_scale": state_size}
        for key, size in {**sizes, "out_shift": action_size, "out_scale": action_size}.items():
            if arrays[key].shape != (size,) or (key.startswith("out") and width != size):
                raise UserError(
                    f"{path}: {key} is {arrays[key].shape} and the last layer gives {width}, but "
                    f"the task has ({size},); use the expert of this task"
                )
        return cls(
            layers=tuple(
                (arrays[w], arrays[b]) for w, b in zip(keys[::2], keys[1::2], strict=True)
            ),
            input_scaling=(arrays["in_shift"], arrays["in_scale"]),
            output_scaling=(arrays["out_shift"], arrays["out_scale"]),
        )

    def reset(self, seed: int) -> None:
        """Do nothing: the network keeps no state."""

    def act(self, state: Floats) -> Floats:
        """Return the network's action."""
        shift, scale = self.input_scaling
        x = (state.astype(np.float64) - shift) / (scale + 1e-8)
        for weight, bias in self.layers[:-1]:
            x = np.tanh(weight @ x + bias)
        weight, bias = self.layers[-1]
        shift, scale = self.output_scaling
        return np.clip((weight @ x + bias) * scale + shift, -1.0, 1.0).astype(np.float32)


def _read_arrays(path: Path) -> dict[str, npt.NDArray[np.float64]]:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file of expert weights")
    try:
        arrays = {key: np.asarray(array, np.float64) for key, array in read_npz(path).items()}
    except ValueError as error:
        raise _not_an_expert(path, describe_error(error)) from error
    bad = [key for key, array in arrays.items() if not np.isfinite(array).all()]
    if bad:
        raise _not_an_expert(path, f"{', '.join(bad)} has NaN or infinity")
    return arrays


def _not_an_expert(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path}: not a file of expert weights: {reason}; it must be an .npz of plain arrays "
        "layer0.weight, layer0.bias, …, in_shift, in_scale, out_shift, out_scale"
    )


def make_expert(env: RobotEnv, weights: Path | None = None) -> Expert:
    """Return the scripted expert of an environment's task, or the one of a file of weights."""
    if weights is not None:
        return NetworkExpert.load(weights, state_size=env.state_size, action_size=env.action_size)
    match find_task(env.task).suite:
        case "toy":
            from rollart_robot.toy_env import ToyExpert  # noqa: PLC0415 of its suite alone

            return ToyExpert()
        case "metaworld":
            from rollart_robot.metaworld_env import MetaWorldEnv, MetaWorldExpert  # noqa: PLC0415

            assert isinstance(env, MetaWorldEnv)
            return MetaWorldExpert(env)
        case "adroit":
            raise UserError(
                f"{env.task} has no scripted expert: give a file of weights (--expert FILE), an "
                ".npz of plain arrays; see rollart_robot.experts.NetworkExpert"
            )


def collect(
    task: str,
    episodes: int,
    seed: int,
    *,
    expert: Path | None = None,
    noise: float = 0.0,
    points: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Demonstrations:
    """Return this many successful episodes of the task's expert.

    `noise`: standard deviation of what is added to the actions that are carried out; recorded is
    what the expert would have done, so a policy learns to come back. `points`: size of the point
    cloud recorded for each state; states are then the robot's own part alone, as a policy that
    sees points gets no positions of objects. `progress` gets the successes and the tries so far.
    """
    if episodes < 1:
        raise UserError(f"episodes = {episodes}: must be at least 1")
    env = make_env(task)
    teacher = make_expert(env, expert)
    most = _TRIES_PER_EPISODE * episodes + _TRIES_PER_EPISODE
    found = list[ExpertEpisode]()
    try:
        for tries, reset in enumerate(
            reset_seeds("demonstrations", seed=seed, count=most), start=1
        ):
            episode = demonstrate(env, teacher, reset, noise=noise, points=points)
            if episode.success:
                found.append(episode)
            if progress is not None:
                progress(len(found), tries)
            if len(found) == episodes:
                return Demonstrations(task=env.task, episodes=tuple(found))
    finally:
        env.close()
    raise UserError(
        f"{env.task}: the expert succeeded in {len(found)} of {most} tries, and {episodes} "
        "demonstrations were asked; " + ("lower the noise" if noise else "use a better expert")
    )


def demonstrate(
    env: RobotEnv, expert: Expert, seed: int, *, noise: float = 0.0, points: int = 0
) -> ExpertEpisode:
    """Return one episode, until a few steps after its success or to its end."""
    state = env.reset(seed)
    expert.reset(seed)
    random = np.random.default_rng([seed, 2])
    states, actions, clouds = list[Floats](), list[Floats](), list[Floats]()
    is_success, left = False, env.max_steps
    while left:
        action = expert.act(state)
        states.append(state[: env.robot_size] if points else state)
        actions.append(action)
        if points:
            clouds.append(env.points(points))
        done = action + noise * random.standard_normal(action.shape) if noise else action
        state, _, terminated, truncated, info = env.step(done)
        left = 0 if terminated or truncated else left - 1
        if info["success"] and not is_success:
            is_success, left = True, min(left, _SETTLE_STEPS)
    return ExpertEpisode(
        states=np.stack(states),
        actions=np.stack(actions),
        points=np.stack(clouds) if clouds else None,
        seed=seed,
        success=is_success,
    )
