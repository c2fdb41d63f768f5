"""OPO: on-policy REINFORCE with the length-weighted baseline (Hao et al. 2025)."""

from dataclasses import dataclass

import numpy as np

from rollart.training.algorithms.corrections import CorrectedPolicy, Surrogate
from rollart.training.algorithms.sequences import centre_on_group
from rollart.types.tokens import Floats, LossTerms, Tensor, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Opo(CorrectedPolicy):
    """OPO: A = R - ΣL·R/ΣL over the group, L the sampled tokens; loss -q·A without a clip.

    The baseline has the least variance if a gradient's size grows as its sequence. Meant for one
    update per batch. Needs groups of at least 2.

    Example:
        Rewards 1, 0, 0, 0.5 of lengths 2, 4, 1, 3 give advantages 0.65, -0.35, -0.35, 0.15.

        >>> Opo()

    """

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each trajectory's reward less the weighted mean at all its tokens."""
        # Centred first: groups with nothing to compare are then exactly 0.
        rewards, lengths = centre_on_group(batch.rewards, batch.groups), batch.sampled_counts
        tokens = np.maximum(np.bincount(batch.groups, weights=lengths), 1)
        means = np.bincount(batch.groups, weights=lengths * rewards) / tokens
        return (rewards - means[batch.groups])[batch.owners]

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the unclipped loss of each token."""
        return Surrogate(losses=-deltas.exp() * terms.advantages)
