"""GRPO: rewards in units of their group's standard deviation (Shao et al. 2024)."""

from dataclasses import dataclass

from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.training.algorithms.sequences import compare
from rollart.types.tokens import Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo(ClippedPolicy):
    """GRPO: A = (R - mean) / (std + 1e-6) over the group; the same for all tokens of an attempt.

    The standard deviation divides by the number of members n; where peers divide by n - 1, their
    advantages are smaller by √((n-1)/n). Needs groups of at least 2.

    Example:
        Rewards 1, 0, 0, 0.5 of one group give advantages 1.508, -0.905, -0.905, 0.302.

        >>> Grpo(clip_high=0.2, kl_coefficient=0.01)

    """

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each trajectory's standardised reward at all its tokens."""
        return compare(batch.rewards, batch.groups, "std")[batch.owners]
