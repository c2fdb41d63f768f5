"""Self-imitation: a policy that learns from rewards also imitates its own successes.

The algorithm's update asks which of the drawn deviations from the policy's action helped, and moves
a policy a little. A successful attempt says more: it is a demonstration of a reset that no
demonstration had. So the objective of imitation learns from it, for fresh noise and times:

    memory    windows of the demonstrations, if policy.demonstrations names them, and of the latest
              successful attempts, those of hard resets more often: weight 1 - s + 0.1,
              s the share of the group that succeeded
    loss      the policy's own objective (OMP, MP1 …) on windows of the memory
    weights   after the updates, the mean over their second half, as imitation acts with an average

The memory keeps the updates from forgetting what this batch does not show: with the batch alone,
success falls. An attempt's actions carry the noise that exploration added, which imitation learns
too: keep `policy.spread` small with it. Draws depend on the step's number alone, and memory and
moments are part of a checkpoint, so a resumed run repeats what it would have done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from rollart_robot.imitation import EpisodeArrays, Windows
from rollart_robot.options import GenerativeOptions
from rollart_robot.policy import DemonstrationBatch, GenerativePolicy

Arrays = Mapping[str, NDArray[Any]]

_WINDOWS = 128
"""Windows of an update, as in imitation."""
_LEAST_WEIGHT = 0.1
"""Of successes on resets that every attempt mastered: they keep what works."""
_MAX_GRAD_NORM = 1.0
_MEMORY = 20_000
"""Windows of attempts that are remembered: about 500 attempts."""


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


_FIELDS = ("states", "actions", "weights")


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
        >>> own = SelfImitation(policy, updates=30, learning_rate=2e-4, shown=episodes)
        >>> own.learn(encode(groups), seed=7)
        {'self_imitation_loss': 0.31, 'self_imitation_windows': 2140.0}

    """

    def __init__(
        self,
        policy: GenerativePolicy,
        *,
        updates: int,
        learning_rate: float,
        shown: Sequence[EpisodeArrays] = (),
    ) -> None:
        """Take the policy, how often and fast it learns, and the demonstrations it started from."""
        self._policy = policy
        self._updates = updates
        self._parameters = list(policy.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=1e-6
        )
        self._shown = self._windows_of(shown) if shown else None
        self._memory: SuccessWindows | None = None

    def learn(self, batch: Arrays, *, seed: int) -> dict[str, float]:
        """Remember the batch's successes and make the updates; return figures of them.

        A loss that is not finite ends them: the weights stay what they were.
        """
        found = success_windows(batch, self._policy.options) if self._updates else None
        if found is not None:
            self._memory = _joined(self._memory, found, most=_MEMORY)
        if self._memory is None:
            return {}
        known = _joined(self._shown, self._memory)
        generator = torch.Generator().manual_seed(seed)
        actions = self._policy.actions.restore(known.actions)
        losses = list[float]()
        before = [each.detach().clone() for each in self._parameters]
        sums = [torch.zeros_like(each) for each in before]
        for update in range(self._updates):
            drawn = torch.multinomial(
                known.weights, _WINDOWS, replacement=True, generator=generator
            )
            windows = DemonstrationBatch(states=known.states[drawn], actions=actions[drawn])
            loss = self._policy.loss(windows, generator)["loss"]
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = clip_grad_norm_(self._parameters, _MAX_GRAD_NORM)
            if not bool(torch.isfinite(loss.detach() + norm)):
                self._set(before)
                return {}
            self._optimizer.step()
            losses.append(float(loss.detach()))
            if update >= self._updates // 2:
                for total, each in zip(sums, self._parameters, strict=True):
                    total.add_(each.detach())
        self._set([total / (self._updates - self._updates // 2) for total in sums])
        return {
            "self_imitation_loss": float(np.mean(losses)),
            "self_imitation_windows": float(len(self._memory.weights)),
        }

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's moments and the memory as tensors by name."""
        moments = self._optimizer.state_dict()["state"]
        found = {
            f"{index}.{name}": value.clone()
            for index, each in moments.items()
            for name, value in each.items()
        }
        if self._memory is not None:
            found |= {f"memory.{name}": getattr(self._memory, name) for name in _FIELDS}
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        moments: dict[int, dict[str, Tensor]] = {}
        memory = dict[str, Tensor]()
        for key, value in state.items():
            index, _, name = key.partition(".")
            if index == "memory":
                memory[name] = value
            else:
                moments.setdefault(int(index), {})[name] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": moments})
        self._memory = SuccessWindows(**memory) if memory else None

    @torch.no_grad()
    def _set(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)

    def _windows_of(self, shown: Sequence[EpisodeArrays]) -> SuccessWindows:
        windows = Windows(shown, self._policy.options)
        every = windows.take(torch.arange(len(windows)))
        return SuccessWindows(
            states=every.states,
            actions=self._policy.actions(every.actions),
            # Their windows begin at every step, those of attempts at every chunk.
            weights=torch.full((len(windows),), 1 / self._policy.options.execute).double(),
        )


def _joined(
    first: SuccessWindows | None, second: SuccessWindows, *, most: int | None = None
) -> SuccessWindows:
    """Return the windows of both, the latest `most` of them."""
    if first is None:
        return second
    parts = (torch.cat([getattr(first, name), getattr(second, name)]) for name in _FIELDS)
    kept = [part if most is None else part[-most:].clone() for part in parts]
    return SuccessWindows(**dict(zip(_FIELDS, kept, strict=True)))
