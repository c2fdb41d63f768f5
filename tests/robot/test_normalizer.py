import numpy as np
import pytest
import torch

from rollart_robot.normalizer import Normalizer


def fitted() -> tuple[Normalizer, np.ndarray]:
    random = np.random.default_rng(0)
    values = random.normal(size=(50, 4)) * [1.0, 100.0, 0.01, 0.0] + [0.0, -7.0, 3.0, 2.5]
    return Normalizer(4).fit([values[:20], values[20:]]), values


def test_the_smallest_and_largest_values_become_minus_one_and_one():
    normalizer, values = fitted()
    found = normalizer(torch.tensor(values, dtype=torch.float32))[:, :3]
    assert torch.allclose(found.amin(dim=0), -torch.ones(3), atol=1e-4)
    assert torch.allclose(found.amax(dim=0), torch.ones(3), atol=1e-4)


def test_values_come_back_as_they_were():
    normalizer, values = fitted()
    normalizer.double().fit([values])
    numbers = torch.tensor(values)
    assert torch.allclose(normalizer.restore(normalizer(numbers)), numbers, rtol=0, atol=1e-12)


def test_a_constant_dimension_becomes_zero_and_comes_back_as_its_constant():
    normalizer, _ = fitted()
    found = normalizer(torch.tensor([[0.0, 0.0, 3.0, 9.0]]))
    assert found[0, 3] == 0
    assert normalizer.restore(torch.tensor([[0.0, 0.0, 0.0, 0.8]]))[0, 3] == 2.5


def test_values_outside_the_demonstrations_are_not_clipped():
    normalizer = Normalizer(1).fit([np.array([[0.0], [2.0]])])
    assert normalizer(torch.tensor([[4.0]])).item() == 3


def test_leading_axes_are_kept():
    normalizer = Normalizer(3).fit([np.random.default_rng(0).normal(size=(5, 7, 3))])
    assert normalizer(torch.zeros(2, 5, 7, 3)).shape == (2, 5, 7, 3)


def test_the_ranges_travel_with_the_weights():
    normalizer, _ = fitted()
    other = Normalizer(4)
    other.load_state_dict(normalizer.state_dict())
    values = torch.randn(3, 4)
    assert torch.equal(other(values), normalizer(values))
    assert torch.equal(other.restore(values), normalizer.restore(values))
    assert all(bool(each.isfinite().all()) for each in normalizer.state_dict().values())


def test_the_example_of_the_docstring():
    normalizer = Normalizer(2).fit([np.array([[0.0, 5.0], [4.0, 5.0]])])
    assert normalizer(torch.tensor([[3.0, 5.0]])).tolist() == [[0.5, 0.0]]
    assert normalizer.restore(torch.tensor([[0.5, 0.3]])).tolist() == [[3.0, 5.0]]


@pytest.mark.parametrize("spread", [0.0, 5e-5])
def test_tiny_noise_is_not_scaled_up(spread: float):
    normalizer = Normalizer(1).fit([np.array([[1.0], [1.0 + spread]])])
    assert normalizer(torch.tensor([[1.0 + spread]])).item() == 0
