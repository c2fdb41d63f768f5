"""SAPO: a soft gate in place of the clip (Gao et al. 2025)."""

from dataclasses import dataclass
from typing import Annotated

from rollart.constraints import Finite, MoreThan
from rollart.training.algorithms.corrections import Surrogate
from rollart.training.algorithms.group_policy import GroupPolicy
from rollart.training.algorithms.policy_loss import Aggregation
from rollart.types.tokens import LossTerms, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sapo(GroupPolicy):
    """SAPO: -A·(4/τ)·σ(τ·(q - 1)), q the ratio of a token, τ by the sign of A.

    On policy (q = 1) its gradient is that of the ratio; it fades as q leaves 1, faster for tokens
    of negative advantage. Needs groups of at least 2.

    Example:
        q = 1.5, A = 1 costs -2.4898; q = 0.5, A = -1 costs 1.4159.

        >>> Sapo(tau_positive=1.0, tau_negative=1.05)

    """

    tau_positive: Annotated[float, Finite(), MoreThan(0)] = 1.0
    """How fast the gate closes for tokens of positive advantage."""
    tau_negative: Annotated[float, Finite(), MoreThan(0)] = 1.05
    """How fast it closes for the others."""
    aggregation: Aggregation = "sequence_mean"
    """What a token weighs; the paper's is the mean over sequences."""

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the gated loss of each token."""
        advantages = terms.advantages
        tau = advantages.new_full(advantages.shape, self.tau_negative)
        tau = tau.masked_fill(advantages > 0, self.tau_positive)
        return Surrogate(losses=-advantages * 4 / tau * (tau * (deltas.exp() - 1)).sigmoid())
