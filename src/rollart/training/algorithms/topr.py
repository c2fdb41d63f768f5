"""TOPR: off-policy REINFORCE that tapers bad samples only (Le Roux et al. 2025)."""

from dataclasses import dataclass

from rollart.training.algorithms.corrections import Surrogate
from rollart.training.algorithms.group_policy import GroupPolicy
from rollart.training.algorithms.sequences import sequence_sums
from rollart.types.tokens import LossTerms, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Topr(GroupPolicy):
    """TOPR: -A·logp where A > 0; elsewhere -sg(min(1, Πq))·A·logp, Π over the trajectory.

    A bad trajectory that the policy no longer makes stops pushing; a good one never does. With
    `correction = "none"` the ratio is to the weights that drew it, as in the paper. With
    `advantage = "reinforce"` the sign is that of the reward, which must then have both. Needs
    groups of at least 2, but for "reinforce".

    Example:
        Log-ratios that add up to -0.3 weigh a bad trajectory's tokens by 0.7408.

        >>> Topr(correction="none", advantage="dr_grpo")

    """

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the log-probs, weighed by advantage and tapered ratio."""
        ratios = sequence_sums(deltas.detach(), terms.owners).exp()
        weights = ratios.clamp(max=1.0).masked_fill(terms.advantages > 0, 1.0)
        losses = -weights * terms.advantages * terms.logprobs
        return Surrogate(losses=losses, means={"clip_fraction": weights < ratios})
