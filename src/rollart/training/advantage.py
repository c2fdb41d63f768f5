"""Advantages: how much better each trajectory did than its group.

Every estimator maps rewards and group indices (one of each per trajectory) to one advantage per
trajectory, shared by all its sampled tokens. Members that infrastructure failed are absent from
the batch, so they are in no statistic. A group with nothing to compare (one member, or equal
rewards) gets exactly 0 from every estimator that has a baseline.

With r the rewards of one group, m its size:

    grpo       (r_i - mean(r)) / (std(r) + eps)     std over the m members (divided by m)
    dr_grpo     r_i - mean(r)
    rloo        r_i - mean of the other m-1 rewards
    reinforce   r_i
"""

import numpy as np
from numpy.typing import NDArray

from rollart.training.options import Advantage

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def compute_advantages(kind: Advantage, rewards: Floats, groups: Indices) -> Floats:
    """Return the advantages that the option `kind` names."""
    match kind:
        case "grpo":
            return grpo(rewards, groups)
        case "dr_grpo":
            return dr_grpo(rewards, groups)
        case "rloo":
            return rloo(rewards, groups)
        case "reinforce":
            return reinforce(rewards, groups)


def grpo(rewards: Floats, groups: Indices, *, eps: float = 1e-6) -> Floats:
    """Return rewards centred on their group's mean, in units of its standard deviation."""
    centred = dr_grpo(rewards, groups)
    sizes = np.bincount(groups)
    deviation = np.sqrt(np.bincount(groups, weights=centred**2) / np.maximum(sizes, 1))
    return centred / (deviation + eps)[groups]


def dr_grpo(rewards: Floats, groups: Indices) -> Floats:
    """Return rewards centred on their group's mean."""
    sizes = np.bincount(groups)
    means = np.bincount(groups, weights=rewards) / np.maximum(sizes, 1)
    return np.where(_comparable(rewards, groups), rewards - means[groups], 0.0)


def rloo(rewards: Floats, groups: Indices) -> Floats:
    """Return rewards less the mean of the group's other members."""
    sizes = np.bincount(groups)[groups]
    return dr_grpo(rewards, groups) * sizes / np.maximum(sizes - 1, 1)


def reinforce(rewards: Floats, groups: Indices) -> Floats:
    """Return the rewards themselves: no baseline."""
    del groups
    return rewards.astype(np.float64)


def _comparable(rewards: Floats, groups: Indices) -> NDArray[np.bool_]:
    """Say for each trajectory whether its group's rewards differ at all."""
    count = int(groups.max(initial=-1)) + 1
    lowest, highest = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(lowest, groups, rewards)
    np.maximum.at(highest, groups, rewards)
    return (highest > lowest)[groups]
