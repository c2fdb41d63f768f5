"""What all losses share: aggregation, divergence from the initial weights, entropy bonus.

For each sampled token, under the weights θ being trained:

    loss        policy + kl_coefficient·divergence - entropy_coefficient·H
    divergence  s · k(d), d = logp_θ - logp_reference; k1 = d, k2 = d²/2, k3 = exp(-d) + d - 1

`policy` is what an algorithm writes (`PolicyLoss.policy`). `s` is the token's probability under θ
over the one it was drawn with. The divergence is KL(π_θ ‖ reference), and so is its gradient.
Differentiated as written, k1 has an expected gradient of 0 and k3 that of KL(reference ‖ π_θ), so
the value is s·k and the gradient is s·d·∇logp_θ. The weight s makes both right for tokens of older
weights too: what is drawn from b and weighed by π_θ/b has the mean it would have under π_θ, as long
as it is not truncated.

Tensors are used through their methods alone, so that a config loads this without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np

from rollart.constraints import AtLeast, Finite, check_fields
from rollart.types.tokens import (
    AlgorithmNeeds,
    Floats,
    Indices,
    LossTerms,
    Tensor,
    TokenBatch,
    TokenLosses,
)

Aggregation = Literal["token_mean", "sequence_mean", "prompt_mean", "constant"]
Divergence = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPart:
    """The policy's part of a micro-batch's loss, one value per token.

    Example:
        >>> PolicyPart(losses=-q * terms.advantages, shares=q.detach())

    """

    losses: Tensor
    shares: Tensor
    """Probability under the weights trained over the one it was drawn with, without gradient."""
    means: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    maxima: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The fields and the terms that losses share, whatever their policy part is.

    Example:
        >>> class Plain(PolicyLoss):  # adds advantages(batch) and policy(terms)

    """

    min_group_size: ClassVar[int] = 2

    aggregation: Aggregation = "token_mean"
    """What a token weighs: 1/tokens, 1/(sequences·its length), 1/(prompts·its prompt's tokens), or
    1/(sequences·constant_tokens)."""
    constant_tokens: Annotated[int, AtLeast(1)] = 128
    """The constant length that aggregation = "constant" divides by; 1: sums over sequences."""
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

    @property
    def needs(self) -> AlgorithmNeeds:
        """Groups to compare, and a reference model where the loss has a divergence."""
        has_kl, has_entropy = self.kl_coefficient > 0, self.entropy_coefficient > 0
        return AlgorithmNeeds(
            min_group_size=self.least_members,
            reference=has_kl,
            entropy=has_entropy,
            idle_tokens=has_kl or has_entropy,
            scores=self.reads_scores,
            whole_attempts=self.mask_truncated_completions,
        )

    @property
    def least_members(self) -> int:
        """Fewest attempts at one task that the advantages compare."""
        return self.min_group_size

    @property
    def reads_scores(self) -> bool:
        """Whether advantages or columns read the model's log-probs: one more pass of it."""
        return False

    def token_weights(self, counts: Indices, groups: Indices) -> Floats:
        """Return what one token of each sequence of a minibatch weighs."""
        return weigh_tokens(self.aggregation, counts, groups, constant_tokens=self.constant_tokens)

    def advantages(self, batch: TokenBatch) -> Floats:
        """Return the advantages of all tokens; every algorithm has its own."""
        raise NotImplementedError

    def policy(self, terms: LossTerms) -> PolicyPart:
        """Return the policy's part of the loss; every algorithm has its own."""
        raise NotImplementedError

    def loss(self, terms: LossTerms) -> TokenLosses:
        """Return the policy's part with the divergence and entropy terms."""
        part = self.policy(terms)
        losses, parts = part.losses, {"policy_loss": part.losses}
        if terms.reference is not None:
            parts["kl"] = kl_divergence(
                terms.logprobs, terms.reference, weights=part.shares, estimator=self.kl_estimator
            )
            losses = losses + self.kl_coefficient * parts["kl"]
        if self.entropy_coefficient:
            losses = losses - self.entropy_coefficient * terms.entropies
        return TokenLosses(losses=losses, parts=parts, means=part.means, maxima=part.maxima)


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


def weigh_tokens(
    kind: Aggregation, counts: Indices, groups: Indices, *, constant_tokens: int
) -> Floats:
    """Return the weight of one token of each sequence, given its sampled tokens and its group.

    Sequences without a sampled token count as sequences and weigh nothing themselves.

    Example:
        >>> weigh_tokens("sequence_mean", np.array([5, 1]), np.array([0, 0]), constant_tokens=1)
        array([0.1, 0.5])

    """
    sequences = max(len(counts), 1)
    match kind:
        case "token_mean":
            return np.full(len(counts), 1.0) / max(int(counts.sum()), 1)
        case "sequence_mean":
            return 1.0 / (np.maximum(counts, 1) * sequences)
        case "prompt_mean":
            prompts, numbers = np.unique(groups, return_inverse=True)
            tokens = np.bincount(numbers, weights=counts, minlength=len(prompts))
            return 1.0 / (np.maximum(tokens, 1)[numbers] * max(len(prompts), 1))
        case "constant":
            return np.full(len(counts), 1.0 / (sequences * constant_tokens))
