"""LitePPO: rewards less their group's mean, in units of the batch's deviation (Liu et al. 2025)."""

from dataclasses import dataclass

from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.training.algorithms.sequences import centre_on_group
from rollart.types.tokens import Floats, TokenBatch

_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePpo(ClippedPolicy):
    """LitePPO: A = (R - mean over the group) / (std over the batch + 1e-6), with the token mean.

    The deviation is that of the rewards of all trajectories and divides by their number. Needs
    groups of at least 2.

    Example:
        Groups of rewards 1, 0 and 1, 0.5 give advantages ±1.206 and ±0.603.

        >>> LitePpo()

    """

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each trajectory's scaled reward at all its tokens."""
        centred = centre_on_group(batch.rewards, batch.groups)
        deviation = batch.rewards.std() if len(batch.rewards) else 0.0
        return (centred / (deviation + _EPS))[batch.owners]
