"""The objectives: how a policy is trained and sampled, one file per method.

An objective is a frozen dataclass whose fields are its parts. It holds no tensors: the network,
the actions, the condition and the generator of its draws are passed in, so the same arguments
give the same loss. Here is what they share: the port, what it returns, and the loss that spreads
a network's features. `rollart_robot.policy.make_objective` picks one by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rollart_robot.networks import ChunkNetwork

_LEAST_DISTANCE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A loss, the parts it is the weighted sum of, and the features it was computed through.

    Example:
        >>> Terms(total=loss, parts={"flow": flow, "alignment": alignment}, features=features)

    """

    total: Tensor
    """What the objective minimises."""
    parts: Mapping[str, Tensor]
    """Each part without its weight, for metrics."""
    features: Tensor
    """The network's middle features [B, F]."""


class Objective(Protocol):
    """Trains a network on chunks of actions and samples chunks from it.

    Example:
        >>> objective.loss(network, actions, condition, generator).total.backward()
        >>> chunk = objective.sample(network, noise, condition)

    """

    def loss(
        self, network: ChunkNetwork, actions: Tensor, condition: Tensor, generator: torch.Generator
    ) -> Terms:
        """Return the loss on normalised actions [B, H, A] for draws of the generator."""
        ...

    def sample(self, network: ChunkNetwork, noise: Tensor, condition: Tensor) -> Tensor:
        """Return normalised actions [B, H, A] for noise of the same shape."""
        ...


def dispersive_loss(features: Tensor, temperature: Tensor | float) -> Tensor:
    """Return log mean_ij exp(-d_ij / τ); d is the squared distance over the batch's largest.

    It falls as the features of a batch move apart, without pairs of its own: a contrastive loss
    that has only negatives. The mean is over all i and j, equal ones too.

    Example:
        Features 0, 1 and 2 have d = 0.25 (twice) and 1: with τ = 1 the loss is
        log((3 + 4 e^-0.25 + 2 e^-1) / 9) = -0.2728.

    """
    squares = features.square().sum(dim=1)
    distances = squares[:, None] + squares[None, :] - 2 * features @ features.T
    distances = distances.clamp_min(0.0)
    distances = distances / distances.max().clamp_min(_LEAST_DISTANCE)
    return torch.log(torch.exp(-distances / temperature).mean())
