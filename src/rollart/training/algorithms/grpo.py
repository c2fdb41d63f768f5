"""GRPO: rewards in units of their group's standard deviation (Shao et al. 2024)."""

from dataclasses import dataclass

import numpy as np

from rollart.training.algorithms.clipped_policy import ClippedPolicy, centre_on_group
from rollart.types.tokens import Floats, TokenBatch

_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo(ClippedPolicy):
    """GRPO: A = (R - mean) / (std + 1e-6) over the group; the same for all tokens of an attempt.

    The standard deviation divides by the number of members n; where peers divide by n - 1, their
    advantages are smaller by √((n-1)/n). Needs groups of at least 2.

    Example:
        Rewards 1, 0, 0, 0.5 of one group give advantages 1.508, -0.905, -0.905, 0.302.

        >>> Grpo(clip_high=0.2, kl_coefficient=0.01)

    """

    def advantages(self, batch: TokenBatch) -> Floats:
        """Return each trajectory's standardised reward at all its tokens."""
        centred = centre_on_group(batch.rewards, batch.groups)
        sizes = np.bincount(batch.groups)
        squares = np.bincount(batch.groups, weights=centred**2)
        deviations = np.sqrt(squares / np.maximum(sizes, 1))
        return (centred / (deviations + _EPS)[batch.groups])[batch.owners]
