"""du/dt: the MeanFlow identity on a flow whose mean velocity is known, and dde against jvp."""

import pytest
import torch
from torch import Tensor

from rollart_robot.derivatives import (
    central_difference,
    double_backward,
    error_table,
    forward_derivative,
    initial_errors,
)
from rollart_robot.networks import make_networks
from rollart_robot.objectives.meanflow import MeanFlow
from rollart_robot.options import GenerativeOptions

MEAN, STD = 0.7, 0.3
"""Of the actions of a flow from N(0, 1) noise to N(MEAN, STD²) actions."""


def variance(t: Tensor) -> Tensor:
    return (1 - t) ** 2 * STD**2 + t**2


def marginal_velocity(z: Tensor, t: Tensor) -> Tensor:
    """E[e - a | z], linear in z because actions and noise are Gaussian."""
    slope = (t - (1 - t) * STD**2) / variance(t)
    return slope * (z - (1 - t) * MEAN) - MEAN


def mean_velocity(z: Tensor, r: Tensor, t: Tensor) -> Tensor:
    """(z_t - z_r) / (t - r): the flow keeps the position in units of the standard deviation."""
    earlier = (1 - r) * MEAN + (variance(r) / variance(t)).sqrt() * (z - (1 - t) * MEAN)
    return (z - earlier) / (t - r)


class GaussianFlow:
    """The exact mean velocity as a network; its limit where r = t."""

    def __call__(self, z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
        r, t = r[:, None, None], t[:, None, None]
        later = torch.where(t > r, t, t + 1)
        u = torch.where(t > r, mean_velocity(z, r, later), marginal_velocity(z, t))
        return u, z.flatten(1)


@pytest.fixture
def draws() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    z = 1.5 * torch.randn(64, 4, 2, generator=generator, dtype=torch.float64)
    r, t = torch.rand(2, 64, generator=generator, dtype=torch.float64).sort(dim=0).values
    return z, r.clamp_max(0.9), t.clamp_min(0.05) + 0.05


def derivatives_of(z: Tensor, r: Tensor, t: Tensor, v: Tensor) -> dict[str, Tensor]:
    flow, none = GaussianFlow(), torch.zeros(64, 0)

    def velocity(z: Tensor, t: Tensor) -> Tensor:
        return flow(z, r, t, none)[0]

    return {
        "jvp": forward_derivative(velocity, z, t, v),
        "dde": central_difference(velocity, z, t, v, epsilon=1e-4),
        "double_backward": double_backward(flow, z, (r, t), v, none)[2],
    }


@pytest.mark.parametrize("derivative", ["jvp", "dde", "double_backward"])
def test_the_mean_velocity_of_a_gaussian_flow_fulfils_the_identity(draws, derivative: str):
    z, r, t = draws
    v = marginal_velocity(z, t[:, None, None])
    found = derivatives_of(z, r, t, v)[derivative]
    right = v - (t - r)[:, None, None] * found
    assert torch.allclose(GaussianFlow()(z, r, t, z)[0], right, rtol=0, atol=1e-5)


def test_one_step_of_the_exact_mean_velocity_maps_noise_to_the_actions_distribution():
    noise = torch.randn(32, 4, 2, dtype=torch.float64)
    found = MeanFlow().sample(GaussianFlow(), noise, torch.zeros(32, 0))
    assert torch.allclose(found, MEAN + STD * noise, rtol=0, atol=1e-12)


def test_the_exact_mean_velocity_is_where_the_loss_has_no_slope():
    """Given z, targets average to u: du/dt is linear in v, whose average is marginal_velocity."""
    torch.manual_seed(0)
    count = 200_000
    actions = MEAN + STD * torch.randn(count, 1, 1, dtype=torch.float64)
    offset = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    slope = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    class Perturbed(GaussianFlow):
        def __call__(self, z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
            u, features = super().__call__(z, r, t, condition)
            return u + offset + slope * z, features

    objective = MeanFlow(derivative="jvp", alignment="off", gamma=1.0)
    none = torch.zeros(count, 0)
    objective.loss(Perturbed(), actions, none, torch.Generator().manual_seed(1)).total.backward()
    assert offset.grad is not None and abs(offset.grad.item()) < 0.02
    assert slope.grad is not None and abs(slope.grad.item()) < 0.02


@pytest.mark.parametrize("network", ["state", "points"])
def test_the_difference_quotient_is_within_a_thousandth_of_the_exact_derivative(network):
    options = GenerativeOptions(network=network)
    errors = initial_errors(options, epsilons=(0.1, 0.01, options.epsilon))
    assert errors[options.epsilon] <= 1e-3
    assert errors[0.01] < errors[0.1]


def test_the_difference_quotient_has_an_error_of_second_order():
    errors = initial_errors(GenerativeOptions(), epsilons=(0.2, 0.1))
    assert errors[0.2] / errors[0.1] == pytest.approx(4, rel=0.1)


def test_double_backward_is_the_exact_derivative():
    torch.manual_seed(0)
    _, network = make_networks(GenerativeOptions(width=16), state_size=3, action_size=2)
    z, v, condition = torch.randn(5, 4, 2), torch.randn(5, 4, 2), torch.randn(5, 6)
    r, t = torch.rand(2, 5)
    u, features, derivative = double_backward(network, z, (r, t), v, condition)

    def velocity(z: Tensor, t: Tensor) -> Tensor:
        return network(z, r, t, condition)[0]

    assert torch.equal(u, velocity(z, t)) and features.shape == (5, 16)
    assert torch.allclose(derivative, forward_derivative(velocity, z, t, v), atol=1e-6)


def test_the_difference_of_half_precision_inputs_is_taken_in_float32():
    z, t, v = torch.ones(1, 1, 1).bfloat16(), torch.ones(1).bfloat16(), torch.ones(1, 1, 1)
    found = central_difference(lambda z, t: z * t, z, t, v.bfloat16(), epsilon=0.005)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(2, abs=1e-4)


def test_the_table_has_a_row_for_each_width():
    lines = error_table().splitlines()
    assert lines[:2] == ["| epsilon | relative error |", "|---|---|"]
    assert len(lines) == 11 and any(line.startswith("| 0.005 | ") for line in lines)
