"""REINFORCE++-baseline: rewards less their group's mean, whitened over the batch's tokens.

Hu et al. 2025; verl's and ROLL's `reinforce_plus_plus_baseline`.
"""

from dataclasses import dataclass

from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.training.algorithms.sequences import centre_on_group, whiten
from rollart.types.tokens import Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlusBaseline(ClippedPolicy):
    """REINFORCE++-baseline: A = R - mean over the group, whitened over the batch's sampled tokens.

    The mean over tokens is taken away too, so a group of equal rewards has an advantage of its own
    unless all groups have. The paper's divergence is in the loss: `kl_coefficient`. Needs groups
    of at least 2.

    Example:
        Rewards 1, 0, 0, 0.5 of lengths 2, 4, 1, 3, one group: 1.6645, -0.8963, -0.8963, 0.3841.

        >>> ReinforcePlusPlusBaseline(kl_coefficient=0.001)

    """

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each trajectory's whitened reward at all its tokens."""
        centred = centre_on_group(batch.rewards, batch.groups)
        return whiten(centred[batch.owners], batch.sampled)
