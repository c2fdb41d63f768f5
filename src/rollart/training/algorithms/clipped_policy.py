"""The clipped ratio of PPO, which GRPO, Dr. GRPO, RLOO, REINFORCE and most others train with.

For each sampled token of advantage A, under the weights θ being trained:

    ratio       q = exp(logp_θ - logp_proximal)
    policy      -w · min(q·A, clip(q, 1 - clip_low, 1 + clip_high)·A)
                with dual_clip, and only where A < 0: at most -w · dual_clip·A

The proximal policy is the trainer's own weights at the start of the step, so the trust region is
around the present policy however old the sample is; the weight w accounts for the age
(`corrections`). The divergence from the initial weights and the entropy bonus are those of every
loss (`policy_loss`).

Tensors are used through their methods alone, so that a config loads this without torch.
"""

from dataclasses import dataclass
from typing import Annotated

from rollart.constraints import AtLeast, Between, Finite
from rollart.errors import ConfigError
from rollart.training.algorithms.corrections import CorrectedPolicy, Surrogate
from rollart.types.tokens import LossTerms, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedPolicy(CorrectedPolicy):
    """The fields and the loss that algorithms with a clipped ratio share.

    Example:
        >>> class BestOnly(ClippedPolicy):  # adds estimate(batch)

    """

    clip_low: Annotated[float, Between(0, 1)] = 0.2
    """The policy ratio is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Finite(), AtLeast(0)] = 0.28
    """The policy ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[float, Finite(), AtLeast(0)] = 0.0
    """Most times its advantage that a token of negative advantage costs; 0: no bound, usual: 3."""

    def __post_init__(self) -> None:
        CorrectedPolicy.__post_init__(self)
        if 0 < self.dual_clip <= 1:
            fix = "must be more than 1, or 0 for no bound: at 1 it would stop tokens on policy"
            raise ConfigError("algorithm.dual_clip", self.dual_clip, fix)

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the clipped loss of each token."""
        clipped = clip(
            deltas.exp(), terms.advantages, low=1 - self.clip_low, high=1 + self.clip_high
        )
        if not self.dual_clip:
            return clipped
        floor = -self.dual_clip * terms.advantages
        is_cut = (terms.advantages < 0) & (clipped.losses > floor)
        return Surrogate(
            losses=clipped.losses.where(~is_cut, floor),
            means={**clipped.means, "dual_clip_fraction": is_cut},
        )


def clip(ratios: Tensor, advantages: Tensor, *, low: float, high: float) -> Surrogate:
    """Return PPO's loss of ratios clipped to `low` and `high`, and where the clip binds.

    Example:
        >>> clip(torch.tensor([1.5]), torch.tensor([1.0]), low=0.8, high=1.28).losses
        tensor([-1.2800])

    """
    gains = (ratios * advantages).minimum(ratios.clamp(low, high) * advantages)
    above, below = (advantages > 0) & (ratios > high), (advantages < 0) & (ratios < low)
    return Surrogate(losses=-gains, means={"clip_fraction": above | below})
