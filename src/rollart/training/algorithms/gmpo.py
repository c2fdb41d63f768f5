"""GMPO: the geometric mean of clipped token ratios (Zhao et al. 2025)."""

from dataclasses import dataclass
from typing import Annotated

from rollart.constraints import Finite, MoreThan
from rollart.training.algorithms.corrections import Surrogate
from rollart.training.algorithms.group_policy import GroupPolicy
from rollart.training.algorithms.policy_loss import Aggregation
from rollart.training.algorithms.sequences import sequence_means
from rollart.types.tokens import LossTerms, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Gmpo(GroupPolicy):
    """GMPO: -A·exp(mean over the sequence of Δ'), Δ = logp - logp_proximal clipped on A's side.

    Δ' = min(Δ, clip_log) where A > 0, max(Δ, -clip_log) where A < 0. Needs groups of at least 2.

    Example:
        Δ = 0.1, -0.3, 0.9 with clip_log = 0.4: the ratio is 1.0689 for A = 1, 1.2628 for A = -1.

        >>> Gmpo(clip_log=0.4)

    """

    clip_log: Annotated[float, Finite(), MoreThan(0)] = 0.4
    """Log-ratios of tokens are clipped at this, on the side where the advantage pushes them."""
    aggregation: Aggregation = "sequence_mean"
    """What a token weighs; the paper's is the mean over sequences."""

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the loss on the sequence's mean ratio, at each of its tokens."""
        clip, advantages = self.clip_log, terms.advantages
        above, below = (advantages > 0) & (deltas > clip), (advantages < 0) & (deltas < -clip)
        clipped = deltas.masked_fill(above, clip).masked_fill(below, -clip)
        ratios = sequence_means(clipped, terms.owners).exp()
        return Surrogate(losses=-advantages * ratios, means={"clip_fraction": above | below})
