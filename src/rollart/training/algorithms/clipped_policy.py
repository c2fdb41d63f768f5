"""The clipped policy loss and the baselines that GRPO, Dr. GRPO, RLOO and REINFORCE share.

For each sampled token of advantage A, under the weights θ being trained:

    ratio       q = exp(logp_θ - logp_proximal)
    policy      -w · min(q·A, clip(q, 1 - clip_low, 1 + clip_high)·A)
                with dual_clip, and only where A < 0: at most -w · dual_clip·A
    divergence  w·q · k(d), d = logp_θ - logp_reference; k1 = d, k2 = d²/2, k3 = exp(-d) + d - 1
    loss        policy + kl_coefficient·divergence - entropy_coefficient·H

`correction = "decoupled"`: the proximal policy is the trainer's own weights at the start of the
step, so the trust region is around the present policy however old the sample is. The weight
w = min(exp(logp_proximal - logp_behaviour), correction_cap), without gradient, accounts for the
age: tokens of mixed versions each get their own. `correction = "none"`: the proximal policy is the
behaviour policy and w = 1, which is plain PPO.

The divergence is KL(π_θ ‖ reference), and so is its gradient. Differentiated as written, k1 has an
expected gradient of 0 and k3 that of KL(reference ‖ π_θ), so the value is k and the gradient is
w·q·d·∇logp_θ. The weight w·q makes both right for tokens of older weights too: what is drawn from
b and weighed by π_θ/b has the mean it would have under π_θ, as long as w is not truncated.

Baselines are per trajectory. A group with nothing to compare (one member, or equal rewards) gets
exactly 0, so that rounding never makes a signal of it.

Tensors are used through their methods alone, so that a config loads this without torch.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from rollart.constraints import AtLeast, Between, Finite, check_fields
from rollart.errors import ConfigError
from rollart.types.tokens import (
    AlgorithmNeeds,
    Flags,
    Floats,
    Indices,
    LossTerms,
    Tensor,
    TokenLosses,
)

Aggregation = Literal["token_mean", "sequence_mean", "constant"]
Correction = Literal["decoupled", "none"]
Divergence = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedPolicy:
    """The fields and the loss that algorithms with a clipped ratio share.

    Example:
        >>> class BestOnly(ClippedPolicy):  # adds advantages(batch)

    """

    min_group_size: ClassVar[int] = 2

    aggregation: Aggregation = "token_mean"
    """What a token weighs: 1/tokens, 1/(sequences·its length), or 1/(sequences·constant_tokens)."""
    constant_tokens: Annotated[int, AtLeast(1)] = 128
    """The constant length that aggregation = "constant" divides by."""
    clip_low: Annotated[float, Between(0, 1)] = 0.2
    """The policy ratio is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Finite(), AtLeast(0)] = 0.28
    """The policy ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[float, Finite(), AtLeast(0)] = 0.0
    """Most times its advantage that a token of negative advantage costs; 0: no bound, usual: 3."""
    correction: Correction = "decoupled"
    """decoupled: ratio to the step's first weights, stale tokens reweighted; none: plain PPO."""
    correction_cap: Annotated[float, Finite(), AtLeast(1, "what is on policy weighs 1")] = 2.0
    """Importance weights of stale tokens are truncated at this."""
    kl_coefficient: Annotated[float, Finite(), AtLeast(0)] = 0.0
    """Weight of KL(policy ‖ initial weights); 0 keeps no reference model."""
    kl_estimator: Divergence = "k3"
    """How the value of that KL is estimated; its gradient is the KL's own whichever it is."""
    entropy_coefficient: Annotated[float, Finite(), AtLeast(0)] = 0.0
    """Weight of the entropy bonus."""
    mask_truncated_completions: bool = False
    """Leave attempts that a limit of tokens or turns cut short out of loss and baselines."""

    def __post_init__(self) -> None:
        check_fields(self, "algorithm")
        if 0 < self.dual_clip <= 1:
            fix = "must be more than 1, or 0 for no bound: at 1 it would stop tokens on policy"
            raise ConfigError("algorithm.dual_clip", self.dual_clip, fix)

    @property
    def needs(self) -> AlgorithmNeeds:
        """Groups to compare, and a reference model where the loss has a divergence."""
        has_kl, has_entropy = self.kl_coefficient > 0, self.entropy_coefficient > 0
        return AlgorithmNeeds(
            min_group_size=self.min_group_size,
            reference=has_kl,
            entropy=has_entropy,
            idle_tokens=has_kl or has_entropy,
            whole_attempts=self.mask_truncated_completions,
        )

    def token_weights(self, counts: Indices, groups: Indices) -> Floats:
        """Return what one token of each sequence of a minibatch weighs."""
        del groups
        return weigh_tokens(self.aggregation, counts, constant_tokens=self.constant_tokens)

    def loss(self, terms: LossTerms) -> TokenLosses:
        """Return the clipped policy loss with its divergence and entropy terms."""
        proximal = terms.proximal if self.correction == "decoupled" else terms.behaviour
        raw = importance_weights(proximal, terms.behaviour)
        weights = raw.clamp(max=self.correction_cap)
        low, high = 1 - self.clip_low, 1 + self.clip_high
        ratios, advantages = (terms.logprobs - proximal).exp(), terms.advantages
        clipped = ratios.clamp(low, high)
        above, below = (advantages > 0) & (ratios > high), (advantages < 0) & (ratios < low)
        gains = (ratios * advantages).minimum(clipped * advantages)
        means = {"clip_fraction": above | below}
        if self.dual_clip:
            floor = self.dual_clip * advantages
            means["dual_clip_fraction"] = is_cut = (advantages < 0) & (gains < floor)
            gains = gains.where(~is_cut, floor)
        losses = policy = -weights * gains
        parts = {"policy_loss": policy}
        if terms.reference is not None:
            parts["kl"] = kl_divergence(
                terms.logprobs,
                terms.reference,
                weights=weights * ratios.detach(),
                estimator=self.kl_estimator,
            )
            losses = losses + self.kl_coefficient * parts["kl"]
        if self.entropy_coefficient:
            losses = losses - self.entropy_coefficient * terms.entropies
        return TokenLosses(
            losses=losses,
            parts=parts,
            means={
                **means,
                "correction_mean": weights,
                "correction_capped_fraction": raw > self.correction_cap,
            },
            maxima={"ratio_max": ratios},
        )


def importance_weights(proximal: Tensor, behaviour: Tensor) -> Tensor:
    """Return exp(logp_proximal - logp_behaviour) without gradient, untruncated."""
    return (proximal - behaviour).detach().exp()


def kl_divergence(
    logprobs: Tensor, reference: Tensor, *, weights: Tensor, estimator: Divergence
) -> Tensor:
    """Return an estimate of KL(policy ‖ reference) at each token, with that KL's gradient.

    `weights` are the tokens' probabilities under the policy over those they were drawn with.
    k1 has no bias and may be negative, k2 has a bias, k3 has none and is never negative.

    Example:
        >>> d = torch.tensor([0.5])  # logprobs - reference
        >>> kl_divergence(d, d * 0, weights=torch.ones(1), estimator="k3")
        tensor([0.1065])

    """
    difference = (logprobs - reference).detach()
    match estimator:
        case "k1":
            values = difference
        case "k2":
            values = difference.square() / 2
        case "k3":
            values = (-difference).exp() + difference - 1
    # The bracket is 0 and carries the gradient.
    return weights.detach() * (values + difference * (logprobs - logprobs.detach()))


def weigh_tokens(kind: Aggregation, counts: Indices, *, constant_tokens: int) -> Floats:
    """Return the weight of one token of each sequence, given its number of sampled tokens.

    Sequences without a sampled token count as sequences and weigh nothing themselves.

    Example:
        >>> weigh_tokens("sequence_mean", np.array([5, 1]), constant_tokens=1)
        array([0.1, 0.5])

    """
    sequences = max(len(counts), 1)
    match kind:
        case "token_mean":
            return np.full(len(counts), 1.0) / max(int(counts.sum()), 1)
        case "sequence_mean":
            return 1.0 / (np.maximum(counts, 1) * sequences)
        case "constant":
            return np.full(len(counts), 1.0 / (sequences * constant_tokens))


def centre_on_group(rewards: Floats, groups: Indices) -> Floats:
    """Return rewards less the mean of their group.

    Example:
        >>> centre_on_group(np.array([1.0, 0.0, 0.0, 0.5]), np.array([0, 0, 0, 0]))
        array([ 0.625, -0.375, -0.375,  0.125])

    """
    sizes = np.bincount(groups)
    means = np.bincount(groups, weights=rewards) / np.maximum(sizes, 1)
    return np.where(_differ(rewards, groups), rewards - means[groups], 0.0)


def _differ(rewards: Floats, groups: Indices) -> Flags:
    """Say for each trajectory whether its group's rewards differ at all."""
    count = int(groups.max(initial=-1)) + 1
    lowest, highest = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(lowest, groups, rewards)
    np.maximum.at(highest, groups, rewards)
    return (highest > lowest)[groups]
