"""FlowPolicy's and diffusion's losses and samples against plain Python."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rollart_robot.objectives.diffusion import Diffusion, signal_shares
from rollart_robot.objectives.flowpolicy import FlowPolicy
from rollart_robot.options import GenerativeOptions
from rollart_robot.policy import make_objective


def smooth(z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
    """A network that needs its time and condition."""
    assert torch.equal(r, t)
    return torch.sin(z + t[:, None, None]) + condition[:, None, :1], z.flatten(1)


def plain_smooth(z: float, t: float, c: float) -> float:
    return math.sin(z + t) + c


def draws(count: int):
    generator = torch.Generator().manual_seed(5)
    actions, noise = torch.randn(2, count, 4, 2, generator=generator, dtype=torch.float64)
    return actions, noise, torch.randn(count, 1, generator=generator, dtype=torch.float64)


def plain_consistency(a_row: list, e_row: list, t: float, c: float) -> tuple[float, float]:
    """One sample's two parts as the method's code computes them."""
    r = min(t + 0.01, 1.0)
    end = 0.5 if t <= 0.5 else 1.0
    points, velocities = [], []
    for a, e in zip(a_row, e_row, strict=True):
        x_t, x_r, x_end = (time * a + (1 - time) * e for time in (t, r, end))
        v_t, v_r = plain_smooth(x_t, 99 * t, c), plain_smooth(x_r, 99 * r, c)
        f_t, f_r = x_t + (end - t) * v_t, x_r + (end - r) * v_r
        points.append((f_t - (f_r if r < 1 else x_end)) ** 2)
        velocities.append((v_t - v_r) ** 2 if end - t > 1.01 * 0.01 else 0.0)
    return sum(points) / len(points), sum(velocities) / len(velocities)


TIMES = [0.01, 0.3, 0.485, 0.495, 0.5, 0.501, 0.8, 0.985, 0.9895, 0.992, 1.0]
"""Within segments, near their ends, at the boundary, and where the later time is 1."""


def test_flowpolicys_loss_is_that_of_plain_python():
    actions, noise, condition = draws(len(TIMES))
    t = torch.tensor(TIMES, dtype=torch.float64)
    found = FlowPolicy().loss_at(smooth, actions, condition, noise=noise, t=t)
    rows = zip(
        actions.flatten(1).tolist(),
        noise.flatten(1).tolist(),
        TIMES,
        condition[:, 0].tolist(),
        strict=True,
    )
    parts = [plain_consistency(*row) for row in rows]
    consistency, velocity = (sum(part) / len(part) for part in zip(*parts, strict=True))
    assert found.parts["consistency"].item() == pytest.approx(consistency, abs=1e-6)
    assert found.parts["velocity"].item() == pytest.approx(velocity, abs=1e-6)
    assert found.total.item() == pytest.approx(consistency + 1e-5 * velocity, abs=1e-6)


@pytest.mark.parametrize("stops", [False, True])
def test_flowpolicys_gradient_flows_through_both_evaluations_unless_it_is_stopped(stops: bool):
    actions, noise, condition = draws(3)
    t = torch.tensor([0.1, 0.3, 0.7], dtype=torch.float64)
    scale = torch.ones(1, dtype=torch.float64, requires_grad=True)

    def network(z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
        return scale * smooth(z, r, t, condition)[0], z

    rule = make_objective(
        GenerativeOptions(objective="flowpolicy", stop_consistency_gradient=stops)
    )
    assert isinstance(rule, FlowPolicy)
    rule.loss_at(network, actions, condition, noise=noise, t=t).total.backward()

    def shifted(first: float, second: float) -> float:
        calls = iter((first, second))

        def network(z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
            return (1 + next(calls)) * smooth(z, r, t, condition)[0], z

        terms = FlowPolicy().loss_at(network, actions, condition, noise=noise, t=t)
        return terms.total.item()

    step = 1e-6
    second = 0.0 if stops else step
    wanted = (shifted(step, second) - shifted(-step, -second)) / (2 * step)
    assert scale.grad is not None and scale.grad.item() == pytest.approx(wanted, abs=1e-7)


def test_flowpolicy_draws_times_from_its_earliest_to_one():
    times = []

    def network(z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
        times.append(t / 99)
        return z, z

    actions = torch.zeros(4000, 1, 1)
    FlowPolicy().loss(network, actions, actions, torch.Generator().manual_seed(0))
    assert 0.01 <= times[0].min() < 0.02 and 0.99 < times[0].max() <= 1
    assert times[0].mean().item() == pytest.approx(0.505, abs=0.02)


def test_flowpolicy_samples_with_one_euler_step_from_its_earliest_time():
    noise = torch.randn(3, 4, 2, dtype=torch.float64)
    condition = torch.randn(3, 1, dtype=torch.float64)
    found = FlowPolicy().sample(smooth, noise, condition)
    wanted = noise + torch.sin(noise + 0.99) + condition[:, None]
    assert torch.allclose(found, wanted, atol=1e-12)


def test_the_schedule_is_the_squared_cosine():
    """Away from the end, where a step's beta is capped, the products telescope."""
    shares = signal_shares(100)
    level = [math.cos((k / 100 + 0.008) / 1.008 * math.pi / 2) ** 2 for k in range(101)]
    assert np.allclose(shares[:99], [each / level[0] for each in level[1:100]])
    assert shares[99] == pytest.approx(shares[98] * 1e-3)


@pytest.mark.parametrize("prediction", ["sample", "epsilon"])
def test_diffusions_loss_is_that_of_plain_python(prediction):
    actions, noise, condition = draws(5)
    steps = [0, 10, 50, 98, 99]
    rule = Diffusion(prediction=prediction)
    found = rule.loss_at(smooth, actions, condition, noise=noise, steps=torch.tensor(steps))
    errors = []
    for row, step in enumerate(steps):
        share = signal_shares(100)[step]
        for a, e in zip(
            actions[row].flatten().tolist(), noise[row].flatten().tolist(), strict=True
        ):
            x = math.sqrt(share) * a + math.sqrt(1 - share) * e
            predicted = plain_smooth(x, step, condition[row].item())
            errors.append((predicted - (a if prediction == "sample" else e)) ** 2)
    assert found.total.item() == pytest.approx(sum(errors) / len(errors), abs=1e-6)


def test_ddim_visits_every_tenth_step_and_returns_the_prediction_of_the_last():
    visited = []

    def network(z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
        visited.append(t[0].item())
        return torch.full_like(z, 0.25), z

    found = Diffusion().sample(network, torch.randn(2, 4, 2), torch.zeros(2, 1))
    assert visited == [90, 80, 70, 60, 50, 40, 30, 20, 10, 0]
    assert torch.equal(found, torch.full((2, 4, 2), 0.25))


@pytest.mark.parametrize("prediction", ["sample", "epsilon"])
def test_ddim_returns_the_actions_of_a_perfect_network(prediction):
    actions = torch.rand(3, 4, 2, dtype=torch.float64) * 2 - 1

    def network(z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
        share = signal_shares(100)[int(t[0])]
        noise = (z - math.sqrt(share) * actions) / math.sqrt(1 - share)
        return (actions if prediction == "sample" else noise), z

    found = Diffusion(prediction=prediction).sample(
        network, torch.randn(3, 4, 2, dtype=torch.float64), torch.zeros(3, 1)
    )
    assert torch.allclose(found, actions, atol=1e-6)


def test_ddim_clips_predicted_actions_to_the_normalised_range():
    def network(z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
        return torch.full_like(z, 7.0), z

    found = Diffusion().sample(network, torch.randn(2, 4, 2), torch.zeros(2, 1))
    assert torch.equal(found, torch.ones(2, 4, 2))
