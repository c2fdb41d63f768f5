"""Imitation: a policy is trained on windows of demonstrations.

A window has `observation_steps` states and, from the oldest of them on, `horizon` actions. Windows
reach over an episode's start by repeating its first row and over its end by repeating its last.
With horizon - observation_steps + 1 executed actions, which is the default, every action of an
episode is the first executed one of exactly one window.

`state()` holds all that a step depends on: weights, average, optimizer, generator and step
count. A trainer that loads it continues to the bit.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from rollart.errors import ConfigError
from rollart_robot.options import GenerativeOptions, ImitationOptions
from rollart_robot.policy import DemonstrationBatch, Floats, GenerativePolicy


class EpisodeArrays(Protocol):
    """One demonstration: a row per time step.

    Example:
        ExpertEpisode(states=zeros(200, 39), actions=zeros(200, 4), seed=7, success=True)

    """

    @property
    def states(self) -> Floats:
        """[T, S]."""
        ...

    @property
    def actions(self) -> Floats:
        """[T, A]."""
        ...

    @property
    def points(self) -> Floats | None:
        """[T, N, 3], if there is a point cloud."""
        ...


class Windows:
    """All windows of some episodes, as indices into their rows.

    Example:
        With 2 observation steps, horizon 4 and 3 executed actions, an episode of 10 steps has
        windows that start at -1, 0, …, 8; the first has states 0, 0 and actions 0, 0, 1, 2.

    """

    def __init__(self, episodes: Sequence[EpisodeArrays], options: GenerativeOptions) -> None:
        self._states = _stack([each.states for each in episodes])
        self._actions = _stack([each.actions for each in episodes])
        self._points = None
        if options.network == "points":
            self._points = _stack(_points_of(episodes))
        rows = list[Tensor]()
        first_row = 0
        for episode in episodes:
            length = len(episode.actions)
            first = 1 - options.observation_steps
            last = length - options.horizon + options.execute - 1
            starts = torch.arange(first, max(first, last + 1))[:, None]
            steps = (starts + torch.arange(options.horizon)).clamp(0, length - 1)
            rows.append(first_row + steps)
            first_row += length
        self._rows = torch.cat(rows)
        self._observed = options.observation_steps
        if len(self._rows) == 0:
            fix = "every episode is too short for one window; lower it, or raise policy.execute"
            raise ConfigError("policy.horizon", options.horizon, fix)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, indices: Tensor) -> DemonstrationBatch:
        """Return the windows of these indices."""
        rows = self._rows[indices]
        observed = rows[:, : self._observed]
        return DemonstrationBatch(
            states=self._states[observed],
            actions=self._actions[rows],
            points=None if self._points is None else self._points[observed],
        )


def learning_rate_factor(step: int, options: ImitationOptions) -> float:
    """Return the share of the learning rate at a step: a linear rise, then half a cosine.

    Example:
        >>> options = ImitationOptions(steps=1000, warmup_steps=500)
        >>> [learning_rate_factor(step, options) for step in (0, 499, 750, 1000)]
        [0.002, 1.0, 0.5, 0.0]

    """
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    share = (step - options.warmup_steps) / (options.steps - options.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def average_decay(updates: int, options: ImitationOptions) -> float:
    """Return what the average keeps of itself after `updates` updates.

    Example:
        >>> [round(average_decay(k, ImitationOptions()), 4) for k in (0, 1, 1000, 10**6)]
        [0.0, 0.4054, 0.9944, 0.9999]

    """
    return min(options.ema_limit, 1 - (1 + updates) ** -options.ema_power)


class ImitationTrainer:
    """Trains a policy; `average` is the one to act with.

    Example:
        >>> trainer = ImitationTrainer(GenerativeOptions(), ImitationOptions(steps=3000), episodes)
        >>> while trainer.steps_done < 3000:
        ...     metrics = trainer.step()
        >>> chunk = trainer.average.act(states, noise)

    """

    def __init__(
        self,
        policy_options: GenerativeOptions,
        options: ImitationOptions,
        episodes: Sequence[EpisodeArrays],
    ) -> None:
        self.options = options
        self.steps_done = 0
        self._windows = Windows(episodes, policy_options)
        self._generator = torch.Generator().manual_seed(options.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            self.policy = GenerativePolicy(
                policy_options,
                state_size=episodes[0].states.shape[-1],
                action_size=episodes[0].actions.shape[-1],
            )
        self.policy.fit_normalizers(
            [each.states for each in episodes],
            [each.actions for each in episodes],
            _points_of(episodes) if policy_options.network == "points" else (),
        )
        self.average = deepcopy(self.policy).requires_grad_(False)
        self._parameters = [each for each in self.policy.parameters() if each.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=options.learning_rate,
            betas=options.betas,
            weight_decay=options.weight_decay,
            fused=True,
        )

    def step(self) -> dict[str, float]:
        """Take one optimizer step; return the losses and the learning rate."""
        rate = self.options.learning_rate * learning_rate_factor(self.steps_done, self.options)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        count = (self.options.batch_size,)
        indices = torch.randint(len(self._windows), count, generator=self._generator)
        losses = self.policy.loss(self._windows.take(indices), self._generator)
        metrics = {name: float(value.detach()) for name, value in losses.items()}
        if not math.isfinite(metrics["loss"]):
            fix = f"the loss is {metrics['loss']} at step {self.steps_done}; lower it"
            raise ConfigError("imitation.learning_rate", self.options.learning_rate, fix)
        self._optimizer.zero_grad()
        losses["loss"].backward()
        if self.options.max_grad_norm:
            clip_grad_norm_(self._parameters, self.options.max_grad_norm)
        self._optimizer.step()
        self._update_average()
        self.steps_done += 1
        return {**metrics, "learning_rate": rate}

    def state(self) -> dict[str, Any]:
        """Return a copy of all that the next steps depend on, as tensors and plain values."""
        state = {
            "policy": self.policy.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "steps_done": self.steps_done,
        }
        return deepcopy(state)

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned."""
        self.policy.load_state_dict(state["policy"])
        self.average.load_state_dict(state["average"])
        # The optimizer keeps the tensors that it is given, and then changes them.
        self._optimizer.load_state_dict(deepcopy(state["optimizer"]))
        self._generator.set_state(state["generator"])
        self.steps_done = int(state["steps_done"])

    @torch.no_grad()
    def _update_average(self) -> None:
        share = 1 - average_decay(self.steps_done, self.options)
        for mean, value in zip(self.average.parameters(), self.policy.parameters(), strict=True):
            mean.lerp_(value, share)


def _stack(arrays: Sequence[Floats]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.float32))


def _points_of(episodes: Sequence[EpisodeArrays]) -> list[Floats]:
    points = [each.points for each in episodes if each.points is not None]
    if len(points) < len(episodes):
        fix = "the demonstrations have no point clouds; record them, or use state"
        raise ConfigError("policy.network", "points", fix)
    return points
