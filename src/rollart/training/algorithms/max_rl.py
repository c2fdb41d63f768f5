"""MaxRL: rewards in units of their group's mean, which favours hard tasks (2026)."""

from dataclasses import dataclass

import numpy as np

from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.training.algorithms.sequences import centre_on_group
from rollart.types.tokens import Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxRl(ClippedPolicy):
    """MaxRL: A = (R - mean) / mean over the group; 0 where the mean is not positive.

    In expectation it is the gradient of the logarithm of the success rate, so it is meant for
    rewards that are not negative. Needs groups of at least 2.

    Example:
        Rewards 1, 0, 0, 0.5 of one group give advantages 1.6667, -1, -1, 0.3333.

        >>> MaxRl()

    """

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each trajectory's scaled reward at all its tokens."""
        groups = batch.groups
        means = np.bincount(groups, weights=batch.rewards) / np.maximum(np.bincount(groups), 1)
        scales = np.where(means > 0, means, np.inf)[groups]
        return (centre_on_group(batch.rewards, groups) / scales)[batch.owners]
