"""REINFORCE++: returns of single tokens, whitened over the batch (Hu et al. 2025)."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from rollart.constraints import AtLeast, Finite
from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.training.algorithms.sequences import sum_from, whiten
from rollart.types.tokens import AlgorithmNeeds, Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlus(ClippedPolicy):
    """REINFORCE++: A = R - β·Σ k1 from the token on, whitened over the batch's sampled tokens.

    k1 = logp - logp_reference; β is `reward_kl_coefficient`. Observations between turns are in no
    sum, and the credit passes over them. Whitening divides by the number of tokens N; where verl
    divides by N - 1, its values are smaller. Groups may have one member. Needs the reference model
    and the model's log-probs before the advantages if β > 0.

    Example:
        Rewards 1, 0, 0, 0.5 of lengths 2, 4, 1, 3 give 1.6645, -0.8963, -0.8963, 0.3841.

        >>> ReinforcePlusPlus(reward_kl_coefficient=0.01)

    """

    min_group_size: ClassVar[int] = 1

    reward_kl_coefficient: Annotated[float, Finite(), AtLeast(0)] = 0.0
    """What a nat of divergence from the initial weights costs, in units of reward."""

    @property
    def needs(self) -> AlgorithmNeeds:
        """The reference model where rewards are reduced by the divergence."""
        own, has_kl = ClippedPolicy.needs.__get__(self), self.reward_kl_coefficient > 0
        return replace(own, reference=own.reference or has_kl, scores=own.scores or has_kl)

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each token's whitened return."""
        returns = batch.rewards.astype(np.float64)[batch.owners]
        if self.reward_kl_coefficient:
            assert batch.proximal is not None
            assert batch.reference is not None
            gaps = batch.proximal.astype(np.float64) - batch.reference
            gaps = np.where(batch.sampled, gaps, 0.0)
            returns = returns - self.reward_kl_coefficient * sum_from(gaps, batch.owners)
        return whiten(returns, batch.sampled)
