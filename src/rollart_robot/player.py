"""The player of robot policies: `[tasks.NAME] player = "robot"`.

It asks the policy of its own process for a chunk of actions, carries out the middle of it, and asks
again. In training an action is drawn from N(mean, spread²) around what the policy gives for the
noise e, and e is recorded: given e the mean is a function of the weights, so the trainer computes
the likelihood of the same action under other weights exactly. Held-out episodes take the mean.

Only what reached the robot has a likelihood: an episode that ends in the middle of a chunk leaves
actions that were not carried out, and a dimension that is constant in the demonstrations is
carried out as that constant, whatever was drawn.
"""

import math
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollart.ports import AttemptContext
from rollart.types import ArraySteps, Played, StopReason
from rollart_robot.runtime import RobotActor


def counted_numbers(carried: NDArray[np.integer], gain: Tensor, length: int) -> NDArray[np.bool_]:
    """Return which numbers of chunks [K, N, A] reached the robot.

    `carried` is how many of the N actions of each chunk were carried out, `gain` that of the
    normaliser of actions, 0 in constant dimensions.

    Example:
        >>> counted_numbers(np.array([2, 1]), torch.tensor([1.0, 0.0]), 2)[:, :, 0].tolist()
        [[True, True], [True, False]]

    """
    is_carried = np.arange(length) < np.asarray(carried)[:, None]
    return is_carried[:, :, None] & (gain.numpy() != 0)


def log_density(actions: Any, means: Any, spread: float, counted: Any) -> Any:
    """Return the log-density of chunks [K, N, A] under N(means, spread²), summed over each chunk.

    `counted` [K, N, A] says which numbers count. Takes numpy arrays or tensors.
    """
    squares = (((actions - means) ** 2) * counted).sum((-1, -2)) / (2 * spread**2)
    count = counted.sum((-1, -2))
    return -squares - count * (math.log(spread) + 0.5 * math.log(2 * math.pi))


class RobotPlayer:
    """Plays an attempt chunk by chunk.

    Example:
        [tasks.reach]
        env = "robot"
        player = "robot"
        options = { task = "reach" }

    """

    async def play(self, attempt: AttemptContext) -> Played:
        """Play the attempt to its end."""
        states, _ = await attempt.reset()
        resident = await attempt.policy()
        actor: RobotActor = resident.policy
        policy, spec = actor.policy, attempt.spec
        options = policy.options
        is_training = spec.task.payload.get("split") != "test"
        draw = np.random.default_rng(spec.seed)
        history = deque([states[-1]] * options.observation_steps, maxlen=options.observation_steps)
        shape = (1, options.horizon, policy.actions.centre.numel())
        seen, noises, taken, carried, scores, rewards = [], [], [], [], [], []
        stop: StopReason | None = None
        success = False
        while stop is None:
            observed = np.stack(history)
            noise = draw.standard_normal(shape, dtype=np.float32)
            with torch.inference_mode():
                mean = policy.mean(torch.from_numpy(observed[None]), torch.from_numpy(noise))
            mean = mean[:, options.executed].numpy()
            action = mean
            if is_training:
                action = mean + actor.spread * draw.standard_normal(mean.shape, dtype=np.float32)
            attempt.note_action(resident.version, cost=options.execute)
            with torch.inference_mode():
                chunk = policy.actions.restore(torch.from_numpy(action[0])).numpy()
            outcome = await attempt.step(chunk)
            history.extend(outcome.observation)
            seen.append(observed)
            noises.append(noise[0])
            taken.append(action[0])
            carried.append(len(outcome.observation))
            counted = counted_numbers(np.array(carried[-1:]), policy.actions.gain, mean.shape[1])
            scores.append(float(log_density(action, mean, actor.spread, counted)[0]))
            rewards.append(outcome.reward)
            success = bool(outcome.success)
            if outcome.terminated or outcome.truncated:
                stop = "terminated" if outcome.terminated else "truncated"
            elif len(rewards) == spec.limits.max_turns:
                stop = "max_turns"
        steps = ArraySteps(
            observations={"states": np.stack(seen)},
            actions=np.stack(taken),
            logprobs=np.array(scores, dtype=np.float32),
            rewards=tuple(rewards),
            versions=(resident.version,) * len(rewards),
            latents={"noise": np.stack(noises), "carried": np.array(carried, dtype=np.int64)},
        )
        return Played(payload=steps, stop=stop, success=success, reward=float(sum(rewards)))
