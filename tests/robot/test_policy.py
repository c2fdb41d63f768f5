"""Acting: shapes, units, determinism and what travels with the weights."""

import math

import numpy as np
import pytest
import torch

from rollart_robot.options import GenerativeOptions
from rollart_robot.policy import DemonstrationBatch, GenerativePolicy

OBJECTIVES = ["omp", "mp1", "flowpolicy", "diffusion"]
SMALL = {"width": 16, "channels": (8, 16)}


def made(seed: int = 0, **options) -> GenerativePolicy:
    torch.manual_seed(seed)
    policy = GenerativePolicy(
        GenerativeOptions(**{**SMALL, **options}), state_size=3, action_size=2
    )
    random = np.random.default_rng(seed)
    policy.fit_normalizers(
        [random.normal(size=(30, 3))],
        [random.uniform(-5, 3, size=(30, 2))],
        [random.normal(size=(30, 10, 3))],
    )
    return policy


def batch(count: int = 6, *, points: bool = False) -> DemonstrationBatch:
    generator = torch.Generator().manual_seed(1)
    return DemonstrationBatch(
        states=torch.randn(count, 2, 3, generator=generator),
        actions=torch.rand(count, 4, 2, generator=generator),
        points=torch.randn(count, 2, 10, 3, generator=generator) if points else None,
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("network", ["state", "points"])
def test_a_policy_acts_for_many_environments_at_once_as_for_each_alone(objective, network):
    policy = made(objective=objective, network=network).double()
    given, noise = batch(points=network == "points"), torch.randn(6, 4, 2).double()
    states = given.states.double()
    points = None if given.points is None else given.points.double()
    together = policy.act(states, noise, points)
    assert together.shape == (6, 4, 2)
    for row in range(6):
        one = slice(row, row + 1)
        alone = policy.act(states[one], noise[one], None if points is None else points[one])
        assert torch.allclose(alone, together[one], atol=1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_same_noise_gives_the_same_action_and_other_noise_another(objective):
    policy = made(objective=objective)
    states, noise = batch().states, torch.randn(6, 4, 2)
    assert torch.equal(policy.act(states, noise), policy.act(states, noise))
    assert not torch.allclose(policy.act(states, noise + 1), policy.act(states, noise))


@pytest.mark.parametrize(
    ("objective", "evaluations"), [("omp", 1), ("mp1", 1), ("flowpolicy", 1), ("diffusion", 10)]
)
def test_one_evaluation_is_enough_except_for_diffusion(objective, evaluations: int):
    policy = made(objective=objective)
    calls = []
    policy.network.register_forward_hook(lambda *_: calls.append(1))
    policy.act(batch().states, torch.randn(6, 4, 2))
    assert len(calls) == evaluations


def test_actions_are_the_restored_mean_without_a_graph():
    policy = made()
    states, noise = batch().states, torch.randn(6, 4, 2)
    mean = policy.mean(states, noise)
    assert mean.requires_grad
    found = policy.act(states, noise)
    assert not found.requires_grad
    assert torch.allclose(found, policy.actions.restore(mean).detach(), atol=1e-6)


def test_arrays_give_the_same_actions_as_tensors():
    policy = made(network="points")
    given, noise = batch(points=True), torch.randn(6, 4, 2)
    assert given.points is not None
    found = policy.act_on(given.states.numpy(), noise.double().numpy(), given.points.numpy())
    assert found.dtype == np.float32
    assert np.array_equal(found, policy.act(given.states, noise, given.points).numpy())


def test_the_mean_of_mean_flow_is_noise_minus_the_mean_velocity():
    policy = made()
    states, noise = batch().states, torch.randn(6, 4, 2)
    velocity, _ = policy.network(noise, torch.zeros(6), torch.ones(6), policy.condition(states))
    assert torch.equal(policy.mean(states, noise), noise - velocity)


@pytest.mark.parametrize("network", ["state", "points"])
def test_a_policy_with_the_same_weights_acts_the_same(network):
    policy, other = made(network=network), made(seed=9, network=network)
    given, noise = batch(points=network == "points"), torch.randn(6, 4, 2)
    before = other.act(given.states, noise, given.points)
    other.load_state_dict(policy.state_dict())
    after = other.act(given.states, noise, given.points)
    assert torch.equal(after, policy.act(given.states, noise, given.points))
    assert not torch.equal(after, before)


PARTS = {
    "omp": {"loss", "flow", "alignment", "dispersion"},
    "mp1": {"loss", "flow", "dispersion"},
    "flowpolicy": {"loss", "consistency", "velocity"},
    "diffusion": {"loss", "denoising"},
}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("network", ["state", "points"])
def test_a_loss_names_its_parts_and_trains_every_parameter(objective, network):
    policy = made(objective=objective, network=network)
    losses = policy.loss(batch(points=network == "points"), torch.Generator().manual_seed(0))
    assert set(losses) == PARTS[objective]
    losses["loss"].backward()
    names = {
        name
        for name, each in policy.named_parameters()
        if each.requires_grad and (each.grad is None or not bool(each.grad.isfinite().all()))
    }
    assert not names


def test_the_loss_is_the_weighted_sum_of_its_parts():
    losses = made(alignment_weight=0.3, dispersive_weight=0.7).loss(
        batch(), torch.Generator().manual_seed(0)
    )
    wanted = losses["flow"] + 0.3 * losses["alignment"] + 0.7 * losses["dispersion"]
    assert torch.allclose(losses["loss"], wanted)


def test_the_derivatives_give_nearly_the_same_loss_and_gradient():
    found = {}
    for derivative in ("jvp", "dde", "double_backward"):
        policy = made(derivative=derivative)
        losses = policy.loss(batch(64), torch.Generator().manual_seed(0))
        losses["loss"].backward()
        gradient = torch.cat([each.grad.flatten() for each in policy.network.parameters()])
        found[derivative] = losses["loss"].item(), gradient
    exact, slope = found["jvp"]
    for value, gradient in found.values():
        assert value == pytest.approx(exact, abs=1e-4)
        assert torch.linalg.norm(gradient - slope) <= 1e-3 * torch.linalg.norm(slope)


def test_the_generator_alone_decides_the_draws():
    policy = made()
    first, second, third = (
        policy.loss(batch(), torch.Generator().manual_seed(seed))["loss"].item()
        for seed in (0, 0, 1)
    )
    assert first == second != third


def test_a_fixed_temperature_is_not_trained():
    policy = made(temperature=0.5)
    assert policy.temperature() == 0.5
    assert "log_temperature" not in policy.state_dict()


def test_a_learned_temperature_is_trained_within_bounds():
    policy = made(temperature=0.5, learned_temperature=True)
    policy.loss(batch(), torch.Generator().manual_seed(0))["loss"].backward()
    assert policy.log_temperature.grad is not None and policy.log_temperature.grad != 0
    with torch.no_grad():
        policy.log_temperature.fill_(math.log(1e-9))
    assert policy.temperature().item() == pytest.approx(0.05)
