"""The policy: the latest observations and noise in, a chunk of actions out.

It owns the normalisers, the encoder, the network and, if it is learned, the temperature of the
dispersive loss; all of it is in `state_dict()`. Given the noise an action is deterministic, so
reinforcement learning can keep the noise e and knows the mean of N(mean(o, e), σ²) exactly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollart.errors import UserError
from rollart_robot.networks import make_networks
from rollart_robot.normalizer import Normalizer
from rollart_robot.objectives import Objective, dispersive_loss
from rollart_robot.objectives.diffusion import Diffusion
from rollart_robot.objectives.flowpolicy import FlowPolicy
from rollart_robot.objectives.meanflow import MeanFlow, TimeSampling
from rollart_robot.options import GenerativeOptions

Floats = NDArray[np.floating]

_TEMPERATURE_FACTOR = 10.0
"""A learned temperature stays within this factor of its start: its loss alone has no minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationBatch:
    """Windows of demonstrations, in the environment's units.

    Example:
        DemonstrationBatch(states=torch.zeros(128, 2, 39), actions=torch.zeros(128, 4, 4))

    """

    states: Tensor
    """The latest observations [B, To, S], oldest first."""
    actions: Tensor
    """The chunk [B, H, A] that starts at the oldest observation."""
    points: Tensor | None = None
    """The point cloud of each observation [B, To, N, 3]."""


class GenerativePolicy(nn.Module):
    """Acts on many environments at once, with one network evaluation (diffusion: several).

    Example:
        >>> policy = GenerativePolicy(GenerativeOptions(), state_size=39, action_size=4)
        >>> chunk = policy.act(states, torch.randn(16, 4, 4))  # states: [16, 2, 39]
        >>> chunk[:, policy.options.executed].shape
        torch.Size([16, 3, 4])

    """

    def __init__(self, options: GenerativeOptions, *, state_size: int, action_size: int) -> None:
        super().__init__()
        self.options = options.resolved()
        self.objective = make_objective(options)
        self.states = Normalizer(state_size)
        self.points = Normalizer(3)
        self.actions = Normalizer(action_size)
        self.encoder, self.network = make_networks(
            options, state_size=state_size, action_size=action_size
        )
        start = torch.tensor(math.log(options.temperature))
        self.log_temperature = nn.Parameter(start) if options.learned_temperature else None

    def fit_normalizers(
        self,
        states: Sequence[Floats],
        actions: Sequence[Floats],
        points: Sequence[Floats] = (),
    ) -> None:
        """Take the ranges of the demonstrations' arrays, one per episode."""
        self.states.fit(states)
        self.actions.fit(actions)
        if points:
            self.points.fit(points)

    def act(self, states: Tensor, noise: Tensor, points: Tensor | None = None) -> Tensor:
        """Return actions [B, H, A] in the environment's units.

        `states` is [B, To, S], `noise` [B, H, A] of N(0, I), `points` [B, To, N, 3].
        """
        with torch.inference_mode():
            return self.actions.restore(self.mean(states, noise, points))

    def act_on(
        self, states: Floats, noise: Floats, points: Floats | None = None
    ) -> NDArray[np.float32]:
        """Return what `act` returns, for arrays: what environments have."""
        cloud = None if points is None else torch.as_tensor(points, dtype=torch.float32)
        seen = torch.as_tensor(states, dtype=torch.float32)
        return self.act(seen, torch.as_tensor(noise, dtype=torch.float32), cloud).numpy()

    def mean(self, states: Tensor, noise: Tensor, points: Tensor | None = None) -> Tensor:
        """Return actions [B, H, A] in normalised units, with a gradient.

        UserError if the task has states or actions of another size than the demonstrations had.
        """
        for name, normalizer, given in (
            ("states", self.states, states),
            ("actions", self.actions, noise),
        ):
            size = normalizer.centre.numel()
            if given.shape[-1] != size:
                raise UserError(
                    f"the policy was trained on a task whose {name} have {size} numbers; this "
                    f"one's have {given.shape[-1]}: play the task of its demonstrations"
                )
        return self.objective.sample(self.network, noise, self.condition(states, points))

    def condition(self, states: Tensor, points: Tensor | None = None) -> Tensor:
        """Return what the network sees of the observations, [B, C]."""
        cloud = self.points(points) if points is not None else None
        return self.encoder(self.states(states), cloud)

    def temperature(self) -> Tensor | float:
        """Return the dispersive loss's temperature."""
        if self.log_temperature is None:
            return self.options.temperature
        middle, reach = math.log(self.options.temperature), math.log(_TEMPERATURE_FACTOR)
        return self.log_temperature.clamp(middle - reach, middle + reach).exp()

    def loss(self, batch: DemonstrationBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the loss to minimise as `loss`, and its parts by name, without their weights."""
        condition = self.condition(batch.states, batch.points)
        actions = self.actions(batch.actions)
        terms = self.objective.loss(self.network, actions, condition, generator)
        losses = {"loss": terms.total, **terms.parts}
        weight = self.options.dispersive_weight
        if weight:
            dispersion = dispersive_loss(terms.features, self.temperature())
            losses["dispersion"] = dispersion
            losses["loss"] = terms.total + weight * dispersion
        return losses


def make_objective(options: GenerativeOptions) -> Objective:
    """Return the objective that the options name, with its parts.

    Example:
        >>> make_objective(GenerativeOptions(objective="mp1")).guidance
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
