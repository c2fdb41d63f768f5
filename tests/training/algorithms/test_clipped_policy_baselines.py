"""The shipped algorithms' advantages against their formulas, written out."""

import math

import numpy as np
import pytest
from training_samples import make_trajectory, make_turn

from rollart.training.batch import decode, encode
from rollart.training.options import read_algorithm

REWARDS = [1.0, 0.0, 0.5, 0.25, 0.7, 0.1, 0.1, 0.1, -2.0, 3.0]
GROUPS = [0, 0, 0, 0, 1, 2, 2, 2, 3, 3]


def advantages_of(kind: str, rewards: list[float], groups: list[int]) -> np.ndarray:
    """The advantages of attempts of two turns, the same at all their tokens."""
    turns = [make_turn([1, 2], [3], [-1.0], [0]), make_turn([4], [5, 6], [-1.0] * 2, [0] * 2)]
    members: dict[int, list] = {group: [] for group in groups}
    for number, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        each = make_trajectory(id=number, group=group, reward=reward, turns=turns)
        members[group].append(each)
    batch = decode(encode(list(members.values())))
    found = read_algorithm({"type": kind}).advantages(batch.view(version=0))
    assert found.dtype == np.float64
    firsts = found[batch.offsets[:-1]]
    np.testing.assert_array_equal(found, firsts[batch.owners])
    return firsts


def written_out(kind: str, rewards: list[float], groups: list[int]) -> list[float]:
    """The formulas, one trajectory at a time."""
    result = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        size = len(members)
        mean = sum(members) / size
        match kind:
            case "reinforce":
                result.append(reward)
            case _ if size == 1 or len(set(members)) == 1:
                result.append(0.0)
            case "grpo":
                std = math.sqrt(sum((r - mean) ** 2 for r in members) / size)
                result.append((reward - mean) / (std + 1e-6))
            case "dr_grpo":
                result.append(reward - mean)
            case "rloo":
                result.append(reward - (sum(members) - reward) / (size - 1))
    return result


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo", "reinforce"])
def test_each_estimator_is_its_written_out_formula(kind):
    found = advantages_of(kind, REWARDS, GROUPS)
    np.testing.assert_allclose(found, written_out(kind, REWARDS, GROUPS), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo"])
def test_single_members_and_equal_rewards_get_exactly_zero(kind):
    found = advantages_of(kind, [0.7, 0.1, 0.1, 0.1], [0, 1, 1, 1])
    assert found.tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo", "reinforce"])
def test_no_trajectories_give_no_advantages(kind):
    assert advantages_of(kind, [], []).tolist() == []


@pytest.mark.parametrize(
    ("kind", "least"), [("grpo", 2), ("dr_grpo", 2), ("rloo", 2), ("reinforce", 1)]
)
def test_each_says_how_many_attempts_it_compares(kind, least):
    assert read_algorithm({"type": kind}).needs.min_group_size == least


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("grpo", [1.5076, -0.9045, -0.9045, 0.3015]),
        ("dr_grpo", [0.625, -0.375, -0.375, 0.125]),
        ("rloo", [0.8333, -0.5, -0.5, 0.1667]),
        ("reinforce", [1.0, 0.0, 0.0, 0.5]),
    ],
)
def test_the_examples_of_the_docstrings_hold(kind, expected):
    found = advantages_of(kind, [1.0, 0.0, 0.0, 0.5], [0] * 4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
