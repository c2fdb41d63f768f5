"""Self-imitation: a policy that learns from rewards also imitates its own successes.

The algorithm's update asks which of the drawn deviations from the policy's action helped: 60 steps
of that move a policy a little. A successful attempt says more. It is a demonstration of a reset
that no demonstration had, so the objective of imitation learns from it, for fresh noise and times:

    windows   of successful attempts, those of hard resets more often: weight 1 - s + 0.1,
              s the share of the group that succeeded
    loss      the policy's own objective (OMP, MP1 …) on these windows

An attempt's actions carry the noise that exploration added, which imitation learns too: keep
`policy.spread` small with it. Draws depend on the step's number alone, so a resumed run repeats
them, and the moments of its optimizer are part of a checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from rollart_robot.options import GenerativeOptions
from rollart_robot.policy import DemonstrationBatch, GenerativePolicy

Arrays = Mapping[str, NDArray[Any]]

_WINDOWS = 128
"""Windows of an update, as in imitation."""
_LEAST_WEIGHT = 0.1
"""Of successes on resets that every attempt mastered: they keep what works."""
_MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessWindows:
    """What successful attempts saw and did, window by window.

    Example:
        >>> found = success_windows(encode(groups), policy.options)
        >>> found.actions.shape, round(float(found.weights[0]), 2)
        (torch.Size([812, 4, 4]), 0.6)

    """

    states: Tensor
    """[W, To, S]"""
    actions: Tensor
    """Chunks [W, H, A] in normalised units, from the oldest observation's action on."""
    weights: Tensor
    """How often each is drawn."""


def success_windows(batch: Arrays, options: GenerativeOptions) -> SuccessWindows | None:
    """Return the windows of a batch's successful attempts; None if there are none."""
    groups, successes = batch["groups"], np.asarray(batch["successes"], dtype=bool)
    shares = np.bincount(groups, weights=successes) / np.bincount(groups)
    offsets = np.arange(options.horizon) - (options.observation_steps - 1)
    states, chunks, weights = [], [], []
    for member in np.flatnonzero(successes):
        rows = np.flatnonzero(batch["owners"] == member)
        carried = batch["carried"][rows]
        done = np.concatenate(
            [batch["actions"][row, :count] for row, count in zip(rows, carried, strict=True)]
        )
        first = np.cumsum(carried) - carried
        # Before the first action the first is repeated, after the last the last: as in imitation.
        wanted = np.clip(first[:, None] + offsets, 0, len(done) - 1)
        states.append(batch["states"][rows])
        chunks.append(done[wanted])
        weights.append(np.full(len(rows), 1 - shares[groups[member]] + _LEAST_WEIGHT))
    if not states:
        return None
    return SuccessWindows(
        states=torch.from_numpy(np.concatenate(states).astype(np.float32)),
        actions=torch.from_numpy(np.concatenate(chunks).astype(np.float32)),
        weights=torch.from_numpy(np.concatenate(weights)),
    )


class SelfImitation:
    """Updates a policy with the objective of imitation on its own successes.

    Example:
        >>> own = SelfImitation(policy, updates=30, learning_rate=2e-4)
        >>> own.learn(encode(groups), seed=7)
        {'self_imitation_loss': 0.31}

    """

    def __init__(self, policy: GenerativePolicy, *, updates: int, learning_rate: float) -> None:
        self._policy = policy
        self._updates = updates
        self._parameters = list(policy.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=1e-6
        )

    def learn(self, batch: Arrays, *, seed: int) -> dict[str, float]:
        """Make the updates; return the mean loss, nothing if no attempt succeeded.

        A loss that is not finite ends them: the weights stay those of the update before.
        """
        found = success_windows(batch, self._policy.options) if self._updates else None
        if found is None:
            return {}
        generator = torch.Generator().manual_seed(seed)
        actions = self._policy.actions.restore(found.actions)
        losses = list[float]()
        for _ in range(self._updates):
            drawn = torch.multinomial(
                found.weights, _WINDOWS, replacement=True, generator=generator
            )
            windows = DemonstrationBatch(states=found.states[drawn], actions=actions[drawn])
            loss = self._policy.loss(windows, generator)["loss"]
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = clip_grad_norm_(self._parameters, _MAX_GRAD_NORM)
            if not bool(torch.isfinite(loss.detach() + norm)):
                break
            self._optimizer.step()
            losses.append(float(loss.detach()))
        return {"self_imitation_loss": float(np.mean(losses))} if losses else {}

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's moments, by the number of the weight and their name."""
        moments = self._optimizer.state_dict()["state"]
        return {
            f"{index}.{name}": value.clone()
            for index, each in moments.items()
            for name, value in each.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            index, _, name = key.partition(".")
            moments.setdefault(int(index), {})[name] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": moments})
