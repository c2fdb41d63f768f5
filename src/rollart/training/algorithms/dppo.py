"""DPPO: PPO whose mask bounds the change of probability, not of the ratio (2026)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from rollart.constraints import AtLeast, Finite
from rollart.training.algorithms.group_policy import ADVANTAGES, GroupAdvantage
from rollart.training.algorithms.policy_loss import PolicyLoss, PolicyPart
from rollart.types.tokens import Floats, LossTerms, Tensor, TokenBatch

_TINY = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Dppo(PolicyLoss):
    """DPPO: -A·π/μ, but 0 where A pushes π further from μ than the bound; μ is the behaviour.

    Masked are tokens of A > 0 and π > μ, or A < 0 and π < μ, whose divergence is above the bound:
    |π - μ| ("tv"), or KL(μ ‖ π) of "this token or any other" ("kl"). Rare tokens may so change by a
    large ratio, frequent ones by little. No correction applies: the ratio is to what drew the
    token. Needs groups of at least 2.

    Example:
        μ = 0.25, π = 0.5, A = 1 is masked (KL 0.1308); μ = 0.001, π = 0.003 is kept at ratio 3.

        >>> Dppo(divergence="kl", bound=0.05)

    """

    advantage: GroupAdvantage = "grpo"
    """Whose advantages: those of grpo, dr_grpo, rloo or reinforce."""
    divergence: Literal["tv", "kl"] = "tv"
    """What the bound is of: total variation, or the KL of a yes-or-no draw."""
    bound: Annotated[float, Finite(), AtLeast(0)] = 0.2
    """Largest divergence at which a token that moves away is trained; usual: tv 0.2, kl 0.05."""

    @property
    def least_members(self) -> int:
        """Fewest attempts at one task that the advantages compare."""
        return ADVANTAGES[self.advantage].min_group_size

    def advantages(self, batch: TokenBatch) -> Floats:
        """Return the advantages that `advantage` names, at all tokens."""
        return ADVANTAGES[self.advantage].estimate(batch)

    def policy(self, terms: LossTerms) -> PolicyPart:
        """Return the masked loss on the ratio to the behaviour."""
        ratios, advantages = (terms.logprobs - terms.behaviour).exp(), terms.advantages
        now, before = terms.logprobs.detach().exp(), terms.behaviour.exp()
        gaps = _bernoulli_kl(before, now) if self.divergence == "kl" else (now - before).abs()
        moves_away = ((advantages > 0) & (now > before)) | ((advantages < 0) & (now < before))
        masked = moves_away & (gaps > self.bound)
        shares = ratios.detach()
        return PolicyPart(
            losses=(-advantages * ratios).masked_fill(masked, 0.0),
            shares=shares,
            means={
                "clip_fraction": masked,
                "drift": (terms.proximal - terms.behaviour).detach().abs(),
            },
            maxima={"ratio_max": shares},
        )


def _bernoulli_kl(before: Tensor, now: Tensor) -> Tensor:
    """Return KL(μ ‖ π) of "this token or any other"."""
    before, now = before.clamp(_TINY, 1 - _TINY), now.clamp(_TINY, 1 - _TINY)
    rest = (1 - before) * ((1 - before) / (1 - now)).log()
    return before * (before / now).log() + rest
