import pytest
import torch

from rollart_robot.networks import (
    TIME_FEATURES,
    PointEncoder,
    TimeEmbedding,
    UNetwork,
    make_networks,
)
from rollart_robot.options import GenerativeOptions


@pytest.mark.parametrize("network", ["state", "points"])
@pytest.mark.parametrize("horizon", [4, 8])
def test_a_prediction_has_the_shape_of_the_chunk(network, horizon: int):
    options = GenerativeOptions(network=network, horizon=horizon, width=32, channels=(8, 16, 32))
    encoder, net = make_networks(options, state_size=5, action_size=3)
    points = torch.randn(6, 2, 40, 3) if network == "points" else None
    condition = encoder(torch.randn(6, 2, 5), points)
    assert condition.shape == (6, encoder.size)
    prediction, features = net(torch.randn(6, horizon, 3), torch.zeros(6), torch.ones(6), condition)
    assert prediction.shape == (6, horizon, 3)
    assert features.shape == ((6, 32) if network == "state" else (6, 32 * horizon // 4))


@pytest.mark.parametrize("network", ["state", "points"])
def test_a_prediction_depends_on_noise_both_times_and_condition(network):
    torch.manual_seed(0)
    options = GenerativeOptions(network=network, width=32, channels=(8, 16, 32))
    encoder, net = make_networks(options, state_size=5, action_size=3)
    inputs = [torch.randn(2, 4, 3), torch.rand(2), torch.rand(2), torch.randn(2, encoder.size)]
    first = net(*inputs)[0]
    for index in range(4):
        changed = list(inputs)
        changed[index] = changed[index] + 0.5
        assert not torch.allclose(net(*changed)[0], first, atol=1e-5)


def test_the_order_of_points_does_not_matter():
    torch.manual_seed(0)
    encoder = PointEncoder(observation_steps=2, state_size=5)
    states, points = torch.randn(3, 2, 5), torch.randn(3, 2, 64, 3)
    shuffled = points[:, :, torch.randperm(64)]
    assert torch.allclose(encoder(states, shuffled), encoder(states, points), atol=1e-6)
    assert not torch.allclose(encoder(states, points + 0.1), encoder(states, points), atol=1e-3)


def test_each_observation_has_its_own_features():
    torch.manual_seed(0)
    encoder = PointEncoder(observation_steps=2, state_size=5)
    states, points = torch.randn(1, 2, 5), torch.randn(1, 2, 16, 3)
    swapped = encoder(states.flip(1), points.flip(1))
    half = encoder.size // 2
    assert torch.allclose(swapped.roll(half, dims=1), encoder(states, points), atol=1e-6)


def test_times_are_not_scaled_up_before_they_are_embedded():
    embedding = TimeEmbedding()
    assert embedding.frequencies.max() == 1
    found = embedding(torch.zeros(1), torch.ones(1))
    assert found.shape == (1, 2 * TIME_FEATURES)
    assert found[0, TIME_FEATURES].item() == pytest.approx(0.8415, abs=1e-4)


def test_a_u_net_of_one_level_keeps_the_horizon():
    net = UNetwork(action_size=2, condition_size=3, channels=(8,))
    prediction, _ = net(torch.randn(2, 5, 2), torch.zeros(2), torch.ones(2), torch.zeros(2, 3))
    assert prediction.shape == (2, 5, 2)


def test_a_point_network_without_points_says_so():
    encoder = PointEncoder(observation_steps=1, state_size=2)
    with pytest.raises(AssertionError, match="needs points"):
        encoder(torch.zeros(1, 1, 2), None)
