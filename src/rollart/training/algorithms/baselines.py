"""Baselines: what a reward is compared with.

All are per trajectory. A group with nothing to compare (one member, or equal rewards) gets exactly
0, so that rounding never makes a signal of it.
"""

import numpy as np

from rollart.types.token_arrays import Flags, Floats, Indices


def centre_on_group(rewards: Floats, groups: Indices) -> Floats:
    """Return rewards less the mean of their group.

    Example:
        >>> centre_on_group(np.array([1.0, 0.0, 0.0, 0.5]), np.array([0, 0, 0, 0]))
        array([ 0.625, -0.375, -0.375,  0.125])

    """
    sizes = np.bincount(groups)
    means = np.bincount(groups, weights=rewards) / np.maximum(sizes, 1)
    return np.where(_differ(rewards, groups), rewards - means[groups], 0.0)


def _differ(rewards: Floats, groups: Indices) -> Flags:
    """Say for each trajectory whether its group's rewards differ at all."""
    count = int(groups.max(initial=-1)) + 1
    lowest, highest = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(lowest, groups, rewards)
    np.maximum.at(highest, groups, rewards)
    return (highest > lowest)[groups]
