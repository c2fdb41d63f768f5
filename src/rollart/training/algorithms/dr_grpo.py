"""Dr. GRPO: rewards less their group's mean, not divided by its deviation (Liu et al. 2025)."""

from dataclasses import dataclass

from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.training.algorithms.sequences import centre_on_group
from rollart.types.tokens import Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo(ClippedPolicy):
    """Dr. GRPO: A = R - mean over the group; the same for all tokens of an attempt.

    The paper also divides by a constant instead of lengths: `aggregation = "constant"`. Needs
    groups of at least 2.

    Example:
        Rewards 1, 0, 0, 0.5 of one group give advantages 0.625, -0.375, -0.375, 0.125.

        >>> DrGrpo(aggregation="constant", constant_tokens=512)

    """

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each trajectory's centred reward at all its tokens."""
        return centre_on_group(batch.rewards, batch.groups)[batch.owners]
