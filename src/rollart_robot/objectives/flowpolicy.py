"""FlowPolicy: consistency flow matching (Zhang et al. 2024), with time from noise to actions.

    x_t = t a + (1 - t) e                     t = 0: noise e, t = 1: actions a
    f(t, x) = x + (end - t) v(t, x)           end: of t's segment of [0, 1]
    loss = |f(t, x_t) - f(r, x_r)|² + α |v(t, x_t) - v(r, x_r)|²,   r = min(t + δ, 1)

Two equal segments. The second part counts only where the segment's end is farther than 1.01 δ;
for r = 1 the target is the exact point at the segment's end. As in the method's code, f(r, x_r)
extrapolates with the segment of t, gradients flow through both evaluations (`stops_gradient`
stops the second, as in its paper), and time is multiplied by 99 before it is embedded.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rollart_robot.networks import ChunkNetwork
from rollart_robot.objectives import Terms

_TIME_SCALE = 99
_FAR = 1.01
"""In units of the distance δ between the two times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPolicy:
    """Consistency flow matching over segments of the flow.

    Example:
        >>> FlowPolicy(stops_gradient=True)

    """

    first: float = 0.01
    """Earliest time, in training and sampling."""
    delta: float = 0.01
    """Distance of the two times whose end points are compared."""
    segments: int = 2
    """Equal parts of [0, 1]."""
    velocity_weight: float = 1e-5
    """Weight of the difference of velocities."""
    stops_gradient: bool = False
    """Let no gradient through the evaluation at the later time."""

    def loss(
        self, network: ChunkNetwork, actions: Tensor, condition: Tensor, generator: torch.Generator
    ) -> Terms:
        """Return the loss for drawn noise and times."""
        noise = torch.empty_like(actions).normal_(generator=generator)
        t = actions.new_empty(len(actions)).uniform_(self.first, 1, generator=generator)
        return self.loss_at(network, actions, condition, noise=noise, t=t)

    def loss_at(
        self,
        network: ChunkNetwork,
        actions: Tensor,
        condition: Tensor,
        *,
        noise: Tensor,
        t: Tensor,
    ) -> Terms:
        """Return the loss for given noise and times."""
        r = (t + self.delta).clamp_max(1.0)
        end = (t * self.segments).ceil().clamp_min(1) / self.segments

        def at(time: Tensor) -> Tensor:
            share = time[:, None, None]
            return share * actions + (1 - share) * noise

        x_t, x_r = at(t), at(r)
        v_t, features = network(x_t, _TIME_SCALE * t, _TIME_SCALE * t, condition)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.stops_gradient):
            v_r, _ = network(x_r, _TIME_SCALE * r, _TIME_SCALE * r, condition)
        reached_t = x_t + (end - t)[:, None, None] * v_t
        reached_r = x_r + (end - r)[:, None, None] * v_r
        target = torch.where((r < 1)[:, None, None], reached_r, at(end))
        consistency = (reached_t - target).square().mean()
        is_far = (end - t > _FAR * self.delta)[:, None, None]
        velocity = (is_far * (v_t - v_r).square()).mean()
        return Terms(
            total=consistency + self.velocity_weight * velocity,
            parts={"consistency": consistency, "velocity": velocity},
            features=features,
        )

    def sample(self, network: ChunkNetwork, noise: Tensor, condition: Tensor) -> Tensor:
        """Return one Euler step of length 1, with the velocity at the earliest time."""
        t = noise.new_full((len(noise),), _TIME_SCALE * self.first)
        return noise + network(noise, t, t, condition)[0]
