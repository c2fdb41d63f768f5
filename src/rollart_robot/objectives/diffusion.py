"""Diffusion: DP3's head, a denoising model sampled with DDIM, so several evaluations per action.

    x_k = √ᾱ_k a + √(1 - ᾱ_k) e               k = 0 … steps - 1
    ᾱ falls as a squared cosine (Nichol and Dhariwal 2021)

DDIM visits every (steps / inference_steps)-th k, from the last to 0, without noise of its own, so
the result depends on the first noise alone. The predicted actions are clipped to [-1, 1], the
range of normalised actions; the noise that DDIM steps along is computed before the clipping.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from rollart_robot.networks import ChunkNetwork
from rollart_robot.objectives import Terms

_OFFSET = 0.008
_MOST_BETA = 0.999


@cache
def signal_shares(steps: int) -> tuple[float, ...]:
    """Return ᾱ_k, the share of x_k's variance that is signal, for each step.

    Example:
        >>> [round(share, 4) for share in signal_shares(100)[::33]]
        [0.9994, 0.7337, 0.242, 0.0]

    """

    def level(time: float) -> float:
        return math.cos((time + _OFFSET) / (1 + _OFFSET) * math.pi / 2) ** 2

    shares, share = list[float](), 1.0
    for step in range(steps):
        beta = min(1 - level((step + 1) / steps) / level(step / steps), _MOST_BETA)
        share *= 1 - beta
        shares.append(share)
    return tuple(shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diffusion:
    """A denoising model of actions.

    Example:
        >>> Diffusion(prediction="epsilon", inference_steps=20)

    """

    prediction: Literal["sample", "epsilon"] = "sample"
    """What the network predicts: the actions or the noise."""
    steps: int = 100
    """Steps of the schedule."""
    inference_steps: int = 10
    """Evaluations per sample."""

    def loss(
        self, network: ChunkNetwork, actions: Tensor, condition: Tensor, generator: torch.Generator
    ) -> Terms:
        """Return the loss for drawn noise and steps."""
        noise = torch.empty_like(actions).normal_(generator=generator)
        count = (len(actions),)
        drawn = torch.randint(self.steps, count, generator=generator, device=actions.device)
        return self.loss_at(network, actions, condition, noise=noise, steps=drawn)

    def loss_at(
        self,
        network: ChunkNetwork,
        actions: Tensor,
        condition: Tensor,
        *,
        noise: Tensor,
        steps: Tensor,
    ) -> Terms:
        """Return the mean squared error for given noise and steps."""
        shares = torch.tensor(
            signal_shares(self.steps), dtype=actions.dtype, device=actions.device
        )[steps][:, None, None]
        x = shares.sqrt() * actions + (1 - shares).sqrt() * noise
        time = steps.to(actions.dtype)
        predicted, features = network(x, time, time, condition)
        wanted = actions if self.prediction == "sample" else noise
        error = (predicted - wanted).square().mean()
        return Terms(total=error, parts={"denoising": error}, features=features)

    def sample(self, network: ChunkNetwork, noise: Tensor, condition: Tensor) -> Tensor:
        """Return the actions that DDIM reaches from the noise."""
        shares = signal_shares(self.steps)
        stride = self.steps // self.inference_steps
        x = noise
        for step in range(self.steps - stride, -1, -stride):
            share, next_share = shares[step], shares[step - stride] if step >= stride else 1.0
            time = x.new_full((len(x),), float(step))
            predicted, _ = network(x, time, time, condition)
            signal, spread = math.sqrt(share), math.sqrt(1 - share)
            if self.prediction == "sample":
                actions, epsilon = predicted, (x - signal * predicted) / spread
            else:
                actions, epsilon = (x - spread * predicted) / signal, predicted
            actions = actions.clamp(-1, 1)
            x = math.sqrt(next_share) * actions + math.sqrt(1 - next_share) * epsilon
        return x
