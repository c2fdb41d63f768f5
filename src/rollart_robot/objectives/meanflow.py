"""MeanFlow: the network learns the mean velocity of a flow, so that one step is the whole way.

    z = (1 - t) a + t e,   v = e - a          t = 0: actions a, t = 1: noise e
    u(z, r, t) = 1/(t - r) ∫ v dt over [r, t]
    u = v - (t - r) du/dt                     the MeanFlow identity
    a = e - u(e, 0, 1)                        one evaluation

The right side of the identity, without gradient, is what u is trained towards. OMP adds the
directional alignment of u with v = e - a; MP1 replaces v by w v + (1 - w) u(z, t, t), which is
its guidance. t lies in [0, 1] and reaches the network unscaled.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from rollart_robot.derivatives import central_difference, double_backward, forward_derivative
from rollart_robot.networks import ChunkNetwork
from rollart_robot.objectives import Terms
from rollart_robot.options import AlignmentName, DerivativeName

LEAST_COSINE = -1 + 1e-6
"""Below it -log((cos + 1) / 2) would reach infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSampling:
    """Draws pairs r ≤ t: two logit-normal draws, sorted; in a share of the batch r is t.

    Example:
        >>> r, t = TimeSampling(equal_share=0.5).draw(128, generator, torch.float32)
        >>> int((r == t).sum())
        64

    """

    mean: float = -0.4
    std: float = 1.0
    equal_share: float = 0.5

    def draw(
        self, count: int, generator: torch.Generator, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return r and t, each [count]."""
        device = generator.device
        normal = torch.randn(2, count, generator=generator, dtype=dtype, device=device)
        draws = torch.sigmoid(self.mean + self.std * normal)
        r, t = draws.amin(dim=0), draws.amax(dim=0)
        order = torch.randperm(count, generator=generator, device=device)
        equal = order[: int(self.equal_share * count)]
        r[equal] = t[equal]
        return r, t


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanFlow:
    """OMP and MP1: MeanFlow with alignment, guidance and a choice of derivative.

    Example:
        >>> MeanFlow(derivative="jvp", alignment="off", guidance=2.0)  # MP1

    """

    derivative: DerivativeName = "dde"
    epsilon: float = 0.005
    alignment: AlignmentName = "log"
    alignment_weight: float = 0.1
    guidance: float = 1.0
    gamma: float = 0.5
    constant: float = 1e-3
    times: TimeSampling = TimeSampling()

    def loss(
        self, network: ChunkNetwork, actions: Tensor, condition: Tensor, generator: torch.Generator
    ) -> Terms:
        """Return the loss for drawn noise and times."""
        noise = torch.empty_like(actions).normal_(generator=generator)
        times = self.times.draw(len(actions), generator, actions.dtype)
        return self.loss_at(network, actions, condition, noise=noise, times=times)

    def loss_at(
        self,
        network: ChunkNetwork,
        actions: Tensor,
        condition: Tensor,
        *,
        noise: Tensor,
        times: tuple[Tensor, Tensor],
    ) -> Terms:
        """Return the loss for given noise and times (r, t)."""
        r, t = times
        share = t[:, None, None]
        z, straight = (1 - share) * actions + share * noise, noise - actions
        v = self._guided(network, z, t, straight, condition)
        u, features, derivative = self._evaluate(network, z, times, v, condition)
        target = (v - (t - r)[:, None, None] * derivative).detach()
        flow = adaptive_loss(u - target, gamma=self.gamma, constant=self.constant)
        if self.alignment == "off":
            return Terms(total=flow, parts={"flow": flow}, features=features)
        alignment = alignment_loss(u, straight, form=self.alignment)
        return Terms(
            total=flow + self.alignment_weight * alignment,
            parts={"flow": flow, "alignment": alignment},
            features=features,
        )

    def sample(self, network: ChunkNetwork, noise: Tensor, condition: Tensor) -> Tensor:
        """Return e - u(e, 0, 1): one evaluation."""
        times = noise.new_zeros(len(noise)), noise.new_ones(len(noise))
        return noise - network(noise, *times, condition)[0]

    def _guided(
        self, network: ChunkNetwork, z: Tensor, t: Tensor, v: Tensor, condition: Tensor
    ) -> Tensor:
        if self.guidance == 1:
            return v
        with torch.no_grad():
            own, _ = network(z, t, t, condition)
        return self.guidance * v + (1 - self.guidance) * own

    def _evaluate(
        self,
        network: ChunkNetwork,
        z: Tensor,
        times: tuple[Tensor, Tensor],
        v: Tensor,
        condition: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return u, the features and du/dt."""
        r, t = times
        if self.derivative == "double_backward":
            return double_backward(network, z, times, v, condition)
        u, features = network(z, r, t, condition)
        derivative = torch.zeros_like(u)
        # Where r is t the derivative is multiplied by 0, so it is computed for the others only.
        chosen = (r < t).nonzero().squeeze(1)
        if len(chosen) == 0:
            return u, features, derivative
        earliest, fixed = r[chosen], condition.detach()[chosen]

        def velocity(z: Tensor, t: Tensor) -> Tensor:
            return network(z, earliest, t, fixed)[0]

        moving = z[chosen], t[chosen], v[chosen]
        if self.derivative == "jvp":
            derivative[chosen] = forward_derivative(velocity, *moving)
        else:
            difference = central_difference(velocity, *moving, epsilon=self.epsilon)
            derivative[chosen] = difference.to(derivative.dtype)
        return u, features, derivative


def adaptive_loss(error: Tensor, *, gamma: float, constant: float) -> Tensor:
    """Return the mean of D / (D + c)^(1 - γ), D a sample's mean square; its weight has no gradient.

    Example:
        An error of 2 everywhere has D = 4; with γ = 0.5 and c = 0 the loss is 4 / √4 = 2.

    """
    squares = error.square().flatten(1).mean(dim=1)
    weights = (squares + constant).pow(gamma - 1).detach()
    return (weights * squares).mean()


def alignment_loss(u: Tensor, v: Tensor, *, form: AlignmentName) -> Tensor:
    """Return how far u points away from v, each chunk taken as one vector.

    With α the angle between them, `log` is -2 log cos(α/2): its slope is tan(α/2), which stays
    large for opposite directions, where the slope sin(α) of `1-cos` vanishes.
    """
    cosine = cosine_similarity(u.flatten(1), v.flatten(1), dim=1)
    if form == "1-cos":
        return (1 - cosine).mean()
    return -torch.log((cosine.clamp_min(LEAST_COSINE) + 1) / 2).mean()
