"""MeanFlow's losses against plain Python, and the slope of the alignment loss."""

import math

import pytest
import torch
from torch import Tensor

from rollart_robot.objectives import dispersive_loss
from rollart_robot.objectives.meanflow import (
    LEAST_COSINE,
    MeanFlow,
    TimeSampling,
    adaptive_loss,
    alignment_loss,
)
from rollart_robot.options import GenerativeOptions
from rollart_robot.policy import make_objective


def polynomial(z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
    """u = 0.3 z² + r z - t³ + c: a network whose derivatives are known."""
    r, t = r[:, None, None], t[:, None, None]
    return 0.3 * z**2 + r * z - t**3 + condition[:, None, :1], z.flatten(1)


def plain_polynomial(z: float, r: float, t: float, c: float) -> float:
    return 0.3 * z**2 + r * z - t**3 + c


def plain_loss(
    actions: list, noise: list, times: list, conditions: list, *, w: float, alignment: float
) -> float:
    """The specification, number by number: guidance w, adaptive loss, weighted alignment."""
    flows, alignments = [], []
    for a_row, e_row, (r, t), c in zip(actions, noise, times, conditions, strict=True):
        errors, us, vs = [], [], []
        for a, e in zip(a_row, e_row, strict=True):
            z, straight = (1 - t) * a + t * e, e - a
            v = w * straight + (1 - w) * plain_polynomial(z, t, t, c)
            u = plain_polynomial(z, r, t, c)
            du = (0.6 * z + r) * v - 3 * t**2
            errors.append(u - (v - (t - r) * du))
            us.append(u)
            vs.append(straight)
        d = sum(error**2 for error in errors) / len(errors)
        flows.append(d * (d + 1e-3) ** -0.5)
        dot = sum(u * v for u, v in zip(us, vs, strict=True))
        cosine = dot / math.hypot(*us) / math.hypot(*vs)
        alignments.append(-math.log((cosine + 1) / 2))
    return sum(flows) / len(flows) + alignment * sum(alignments) / len(alignments)


def draws():
    generator = torch.Generator().manual_seed(5)
    actions, noise = torch.randn(2, 6, 4, 2, generator=generator, dtype=torch.float64)
    condition = torch.randn(6, 1, generator=generator, dtype=torch.float64)
    r, t = TimeSampling().draw(6, generator, torch.float64)
    return actions, noise, condition, (r, t)


def in_python(actions: Tensor, noise: Tensor, condition: Tensor, times: tuple[Tensor, Tensor]):
    return (
        actions.flatten(1).tolist(),
        noise.flatten(1).tolist(),
        list(zip(*(time.tolist() for time in times), strict=True)),
        condition[:, 0].tolist(),
    )


@pytest.mark.parametrize("derivative", ["jvp", "double_backward", "dde"])
@pytest.mark.parametrize(("objective", "w", "weight"), [("mp1", 2.0, 0.0), ("omp", 1.0, 0.1)])
def test_the_loss_is_that_of_plain_python(objective, w: float, weight: float, derivative):
    actions, noise, condition, times = draws()
    rule = make_objective(
        GenerativeOptions(objective=objective, derivative=derivative, epsilon=1e-5)
    )
    assert isinstance(rule, MeanFlow)
    found = rule.loss_at(polynomial, actions, condition, noise=noise, times=times)
    wanted = plain_loss(*in_python(actions, noise, condition, times), w=w, alignment=weight)
    assert found.total.item() == pytest.approx(wanted, abs=1e-6)


def test_the_target_has_no_gradient():
    actions, noise, condition, times = draws()
    scale = torch.ones(1, dtype=torch.float64, requires_grad=True)
    rule = MeanFlow(derivative="double_backward", alignment="off", gamma=1.0)

    def network(z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
        u, features = polynomial(z, r, t, condition)
        return scale * u, features

    rule.loss_at(network, actions, condition, noise=noise, times=times).total.backward()
    r, t = (time[:, None, None] for time in times)
    z, v = (1 - t) * actions + t * noise, noise - actions
    u = polynomial(z, *times, condition)[0]
    target = v - (t - r) * ((0.6 * z + r) * v - 3 * t**2)
    assert scale.grad is not None
    assert scale.grad.item() == pytest.approx((2 * (u - target) * u).mean().item(), abs=1e-9)


@pytest.mark.parametrize("derivative", ["jvp", "dde"])
def test_the_derivative_is_computed_only_where_r_is_below_t(derivative):
    sizes = []

    def network(z: Tensor, r: Tensor, t: Tensor, condition: Tensor):
        sizes.append((len(z), bool((r < t - 0.1).all())))
        return polynomial(z, r, t, condition)

    actions, noise, condition, _ = draws()
    t = torch.full((6,), 0.6, dtype=torch.float64)
    r = torch.tensor([0.6, 0.1, 0.6, 0.2, 0.6, 0.3], dtype=torch.float64)
    rule = MeanFlow(derivative=derivative, alignment="off")
    rule.loss_at(network, actions, condition, noise=noise, times=(r, t))
    rule.loss_at(network, actions, condition, noise=noise, times=(t, t))
    evaluations = [(3, True)] * (1 if derivative == "jvp" else 2)
    assert sizes == [(6, False), *evaluations, (6, False)]


def test_times_are_sorted_logit_normal_draws_and_half_are_equal():
    r, t = TimeSampling().draw(20_000, torch.Generator().manual_seed(0), torch.float64)
    assert bool((r <= t).all()) and int((r == t).sum()) == 10_000
    assert r.min() > 0 and t.max() < 1
    spread = r != t
    both = torch.logit(torch.cat((r[spread], t[spread])))
    assert both.mean().item() == pytest.approx(-0.4, abs=0.03)
    assert both.std().item() == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("gamma", [0.5, 0.0, 1.0])
def test_the_adaptive_loss_weighs_each_sample_by_its_own_error(gamma: float):
    error = torch.tensor([[[3.0, 1.0]], [[0.0, 0.2]]], dtype=torch.float64)
    squares = [5.0, 0.02]
    wanted = sum(d * (d + 1e-3) ** (gamma - 1) for d in squares) / 2
    found = adaptive_loss(error, gamma=gamma, constant=1e-3)
    assert found.item() == pytest.approx(wanted, rel=1e-12)


def test_plain_l2_is_the_mean_square():
    error = torch.randn(5, 4, 2, dtype=torch.float64)
    rule = make_objective(GenerativeOptions(loss="l2"))
    assert isinstance(rule, MeanFlow)
    found = adaptive_loss(error, gamma=rule.gamma, constant=rule.constant)
    assert found.item() == pytest.approx(error.square().mean().item(), rel=1e-12)


ANGLES = [0.1, 0.8, math.pi / 2, 2.5, 3.0]


@pytest.mark.parametrize("angle", ANGLES)
def test_the_slope_of_the_alignment_loss_is_the_tangent_of_half_the_angle(angle: float):
    alpha = torch.tensor(angle, dtype=torch.float64, requires_grad=True)
    u = 2.5 * torch.stack((alpha.cos(), alpha.sin())).reshape(1, 1, 2)
    v = torch.tensor([[[1.7, 0.0]]], dtype=torch.float64)
    loss = alignment_loss(u, v, form="log")
    (slope,) = torch.autograd.grad(loss, alpha)
    assert loss.item() == pytest.approx(-2 * math.log(math.cos(angle / 2)), abs=1e-9)
    assert slope.item() == pytest.approx(math.tan(angle / 2), rel=1e-6)


@pytest.mark.parametrize("angle", ANGLES)
def test_the_slope_of_the_early_form_is_the_sine_of_the_angle(angle: float):
    alpha = torch.tensor(angle, dtype=torch.float64, requires_grad=True)
    u = 2.5 * torch.stack((alpha.cos(), alpha.sin())).reshape(1, 1, 2)
    v = torch.tensor([[[1.7, 0.0]]], dtype=torch.float64)
    (slope,) = torch.autograd.grad(alignment_loss(u, v, form="1-cos"), alpha)
    assert slope.item() == pytest.approx(math.sin(angle), rel=1e-6)


def test_the_gradient_of_the_alignment_loss_turns_u_and_does_not_stretch_it():
    """By hand: -(v/|v| - cos u/|u|) / (|u| (1 + cos)), at right angles to u."""
    torch.manual_seed(0)
    u = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    v = torch.randn(3, 4, 2, dtype=torch.float64)
    (found,) = torch.autograd.grad(alignment_loss(u, v, form="log"), u)
    flat_u, flat_v = u.detach().flatten(1), v.flatten(1)
    length = flat_u.norm(dim=1, keepdim=True)
    unit_u, unit_v = flat_u / length, flat_v / flat_v.norm(dim=1, keepdim=True)
    cosine = (unit_u * unit_v).sum(dim=1, keepdim=True)
    wanted = -(unit_v - cosine * unit_u) / (length * (1 + cosine)) / 3
    assert torch.allclose(found.flatten(1), wanted, atol=1e-9)
    assert torch.allclose((found * u).sum(dim=(1, 2)), torch.zeros(3).double(), atol=1e-9)


def test_opposite_directions_have_a_finite_alignment_loss():
    v = torch.ones(1, 4, 2)
    u = (-v).requires_grad_()
    loss = alignment_loss(u, v, form="log")
    loss.backward()
    assert loss.item() == pytest.approx(-math.log((LEAST_COSINE + 1) / 2), rel=0.1)
    assert u.grad is not None and bool(u.grad.isfinite().all())


def plain_dispersion(rows: list[list[float]], temperature: float) -> float:
    distances = [
        sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for one in rows for other in rows
    ]
    largest = max(distances)
    terms = [math.exp(-distance / largest / temperature) for distance in distances]
    return math.log(sum(terms) / len(terms))


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_the_dispersive_loss_is_that_of_plain_python(temperature: float):
    features = torch.randn(7, 5, dtype=torch.float64)
    wanted = plain_dispersion(features.tolist(), temperature)
    assert dispersive_loss(features, temperature).item() == pytest.approx(wanted, abs=1e-12)


def test_the_dispersive_loss_of_its_example():
    found = dispersive_loss(torch.tensor([[0.0], [1.0], [2.0]]), 1.0)
    assert found.item() == pytest.approx(-0.2728, abs=1e-4)


def test_equal_features_have_a_finite_dispersive_loss():
    features = torch.ones(4, 3, requires_grad=True)
    loss = dispersive_loss(features, 1.0)
    loss.backward()
    assert loss.item() == 0 and features.grad is not None
    assert bool(features.grad.isfinite().all())
