"""GSPO: the ratio of whole sequences, to the power of 1/length (Zheng et al. 2025)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from rollart.constraints import AtLeast, Between, Finite
from rollart.training.algorithms.clipped_policy import clip
from rollart.training.algorithms.corrections import Surrogate
from rollart.training.algorithms.group_policy import GroupPolicy
from rollart.training.algorithms.policy_loss import Aggregation
from rollart.training.algorithms.sequences import sequence_means
from rollart.types.tokens import LossTerms, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo(GroupPolicy):
    """GSPO: -min(s·A, clip(s)·A) with s = exp(mean over the sequence of logp - logp_proximal).

    `level = "token"` (GSPO-token) has the same values, with s·π/sg(π) in place of s: the gradient
    of a token is its own, so that its advantage may be too. s stays much nearer to 1 than a
    token's ratio, so the bounds are narrow. Needs groups of at least 2.

    Example:
        logp - logp_proximal = 0.1, -0.3, 0.05 gives s = 0.951229.

        >>> Gspo(level="token", clip_low=3e-4, clip_high=4e-4)

    """

    level: Literal["sequence", "token"] = "sequence"
    """Whether a token's gradient is that of its sequence's ratio or of its own probability."""
    clip_low: Annotated[float, Between(0, 1)] = 3e-4
    """The sequence's ratio is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Finite(), AtLeast(0)] = 4e-4
    """The sequence's ratio is clipped above at 1 + clip_high."""
    aggregation: Aggregation = "sequence_mean"
    """What a token weighs; the paper's is the mean over sequences."""

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the clipped loss on the sequence's ratio, at each of its tokens."""
        ratios = sequence_means(deltas, terms.owners).exp()
        if self.level == "token":
            ratios = ratios.detach() * (deltas - deltas.detach()).exp()
        low, high = 1 - self.clip_low, 1 + self.clip_high
        return clip(ratios, terms.advantages, low=low, high=high)
