"""The objectives: how a policy is trained and sampled, one file per method.

An objective is a frozen dataclass whose fields are its parts. It holds no tensors: the network,
the actions, the condition and the generator of its draws are passed in, so the same arguments
give the same loss.
"""

from typing import Protocol

import torch
from torch import Tensor

from rollart_robot.networks import ChunkNetwork
from rollart_robot.objectives.diffusion import Diffusion
from rollart_robot.objectives.flowpolicy import FlowPolicy
from rollart_robot.objectives.meanflow import MeanFlow, TimeSampling
from rollart_robot.objectives.terms import Terms
from rollart_robot.options import PolicyOptions

__all__ = ["Objective", "Terms", "make_objective"]


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


def make_objective(options: PolicyOptions) -> Objective:
    """Return the objective that the options name, with its parts.

    Example:
        >>> make_objective(PolicyOptions(objective="mp1")).guidance
        2.0

    """
    parts = options.resolved()
    match parts.objective:
        case "omp" | "mp1":
            assert parts.derivative is not None
            assert parts.alignment is not None
            assert parts.guidance is not None
            return MeanFlow(
                derivative=parts.derivative,
                epsilon=parts.epsilon,
                alignment=parts.alignment,
                alignment_weight=parts.alignment_weight,
                guidance=parts.guidance,
                # 1 is l2: every sample has weight 1.
                gamma=parts.loss_gamma if parts.loss == "adaptive" else 1.0,
                constant=parts.loss_constant,
                times=TimeSampling(
                    mean=parts.time_mean,
                    std=parts.time_std,
                    equal_share=parts.equal_time_share,
                ),
            )
        case "flowpolicy":
            return FlowPolicy(stops_gradient=parts.stop_consistency_gradient)
        case "diffusion":
            return Diffusion(
                prediction=parts.prediction,
                steps=parts.diffusion_steps,
                inference_steps=parts.inference_steps,
            )
