"""REINFORCE: the reward itself, without a baseline (Williams 1992)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.types.tokens import Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce(ClippedPolicy):
    """REINFORCE: A = R for all tokens of an attempt. Groups may have one member.

    Example:
        Rewards 1, 0, 0, 0.5 are the advantages.

        >>> Reinforce(correction="none")

    """

    min_group_size: ClassVar[int] = 1

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each trajectory's reward at all its tokens."""
        return batch.rewards.astype(np.float64)[batch.owners]
