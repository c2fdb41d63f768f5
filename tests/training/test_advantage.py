import math

import numpy as np
import pytest

from rollart.training.advantage import compute_advantages

REWARDS = [1.0, 0.0, 0.5, 0.25, 0.7, 0.1, 0.1, 0.1, -2.0, 3.0]
GROUPS = [0, 0, 0, 0, 1, 2, 2, 2, 3, 3]


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
    found = compute_advantages(kind, np.array(REWARDS), np.array(GROUPS))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, written_out(kind, REWARDS, GROUPS), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo"])
def test_single_members_and_equal_rewards_get_exactly_zero(kind):
    rewards, groups = np.array([0.7, 0.1, 0.1, 0.1]), np.array([0, 1, 1, 1])
    assert compute_advantages(kind, rewards, groups).tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo", "reinforce"])
def test_no_trajectories_give_no_advantages(kind):
    assert compute_advantages(kind, np.zeros(0), np.zeros(0, np.int64)).tolist() == []
