"""RLOO: rewards less the mean of the group's other members (Ahmadian et al. 2024)."""

from dataclasses import dataclass

import numpy as np

from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.training.algorithms.sequences import centre_on_group
from rollart.types.tokens import Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo(ClippedPolicy):
    """RLOO: A = R - mean of the others = (R - mean) · n / (n - 1), for all tokens of an attempt.

    Needs groups of at least 2.

    Example:
        Rewards 1, 0, 0, 0.5 of one group give advantages 0.833, -0.5, -0.5, 0.167.

        >>> Rloo(aggregation="sequence_mean")

    """

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each trajectory's reward less the others' mean at all its tokens."""
        sizes = np.bincount(batch.groups)[batch.groups]
        centred = centre_on_group(batch.rewards, batch.groups)
        return (centred * sizes / np.maximum(sizes - 1, 1))[batch.owners]
