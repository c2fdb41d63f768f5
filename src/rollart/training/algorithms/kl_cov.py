"""KL-Cov: tokens whose probability and advantage rise together are held near the proximal policy.

They are what makes the entropy fall (Cui et al. 2025).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from rollart.constraints import AtLeast, Between, Finite
from rollart.training.algorithms.clip_cov import covariances_of
from rollart.training.algorithms.corrections import CorrectedPolicy, Surrogate
from rollart.training.algorithms.group_policy import GroupPolicy
from rollart.types.tokens import Floats, LossTerms, Tensor, TokenBatch

_HELD = "covariance_fraction"


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCov(GroupPolicy):
    """KL-Cov: -q·A, and + penalty·|logp - logp_proximal| for the `share` of largest covariance.

    The covariance is that of Clip-Cov, over the whole batch; there is no clip. On the first update
    of a batch the added term is 0 and flat. Needs groups of at least 2 and the model's log-probs
    before the advantages.

    Example:
        >>> KlCov(share=2e-4, penalty=1.0)

    """

    share: Annotated[float, Between(0, 1)] = 2e-4
    """Share of the batch's sampled tokens that are held."""
    penalty: Annotated[float, Finite(), AtLeast(0)] = 1.0
    """Weight of the absolute log-ratio of those tokens."""

    @property
    def reads_scores(self) -> bool:
        """Covariances are of the model's log-probs."""
        return True

    def columns(self, batch: TokenBatch, advantages: Floats) -> Mapping[str, Floats]:
        """Mark the tokens of largest covariance, over the whole batch."""
        found = np.zeros(len(advantages))
        sampled = int(batch.sampled.sum())
        order = np.argsort(-covariances_of(batch, advantages), kind="stable")  # nan comes last
        found[order[: min(sampled, max(int(self.share * sampled), 1))]] = 1.0
        return {**CorrectedPolicy.columns(self, batch, advantages), _HELD: found}

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the unclipped loss of each token, and the penalty of those held."""
        held = terms.columns[_HELD]
        losses = -deltas.exp() * terms.advantages + self.penalty * held * deltas.abs()
        return Surrogate(losses=losses, means={_HELD: held})
