"""CISPO: REINFORCE with clipped importance weights, so that no token loses its gradient.

MiniMax-M1 (2025), ScaleRL (2025).
"""

from dataclasses import dataclass
from typing import Annotated

from rollart.constraints import AtLeast, Between, Finite
from rollart.training.algorithms.corrections import Surrogate
from rollart.training.algorithms.group_policy import GroupPolicy
from rollart.types.tokens import LossTerms, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo(GroupPolicy):
    """CISPO: -sg(clip(q, 1 - clip_low, 1 + clip_high))·A·logp, q the ratio of a token.

    TRL's `epsilon_high` for it is the cap itself: 1 + clip_high here. Needs groups of at least 2.

    Example:
        A ratio of 9 weighs 5 with the usual clip_high = 4.

        >>> Cispo(clip_high=4.0)

    """

    clip_low: Annotated[float, Between(0, 1)] = 1.0
    """The weight of a token is at least 1 - clip_low; 1: no bound."""
    clip_high: Annotated[float, Finite(), AtLeast(0)] = 4.0
    """The weight of a token is at most 1 + clip_high."""

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the log-probs, weighed by advantage and clipped ratio."""
        ratios, low, high = deltas.detach().exp(), 1 - self.clip_low, 1 + self.clip_high
        losses = -ratios.clamp(low, high) * terms.advantages * terms.logprobs
        return Surrogate(losses=losses, means={"clip_fraction": (ratios < low) | (ratios > high)})
