"""Losses and their aggregation, as pure functions of flat tensors over sampled tokens.

Per sampled token t of a trajectory with advantage A, under the weights θ being moved:

    ratio       r = exp(logp_θ - logp_proximal)
    policy      -w · min(r·A, clip(r, 1 - clip_low, 1 + clip_high)·A)
    divergence  k3 = exp(logp_reference - logp_θ) - (logp_reference - logp_θ) - 1   (≥ 0)
    loss        Σ_t weight_t · (policy_t + kl_coefficient·k3_t - entropy_coefficient·H_t)

`correction = "decoupled"`: the proximal policy is the trainer's own weights at the start of the
step, so the trust region is around the present policy however old the sample is, and
w = min(exp(logp_proximal - logp_behaviour), correction_cap), without gradient, accounts for the
age: tokens of mixed versions each get their own weight. `correction = "none"`: the proximal policy
is the behaviour policy and w = 1, plain PPO.

Token weights are of a whole minibatch, so micro-batches only split a sum:

    token_mean     1 / tokens
    sequence_mean  1 / (sequences · tokens of its sequence)
    dr_grpo        1 / (sequences · constant_tokens)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rollart.training.options import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    """The policy loss per token and what it was made of."""

    losses: Tensor
    ratios: Tensor
    corrections: Tensor
    is_clipped: Tensor
    is_capped: Tensor


def policy_terms(
    logprobs: Tensor,
    *,
    proximal: Tensor,
    advantages: Tensor,
    corrections: Tensor,
    cap: float,
    clip_low: float,
    clip_high: float,
) -> PolicyTerms:
    """Return the clipped policy loss of each token; `corrections` come untruncated."""
    ratios = torch.exp(logprobs - proximal)
    clipped = ratios.clamp(1 - clip_low, 1 + clip_high)
    weights = corrections.clamp(max=cap)
    above = (advantages > 0) & (ratios > 1 + clip_high)
    below = (advantages < 0) & (ratios < 1 - clip_low)
    return PolicyTerms(
        losses=-weights * torch.minimum(ratios * advantages, clipped * advantages),
        ratios=ratios.detach(),
        corrections=weights,
        is_clipped=above | below,
        is_capped=corrections > cap,
    )


def importance_weights(proximal: Tensor, behaviour: Tensor) -> Tensor:
    """Return exp(logp_proximal - logp_behaviour) without gradient, untruncated."""
    return torch.exp((proximal - behaviour).detach())


def k3_divergence(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return the k3 estimate of KL(policy ‖ reference) at each token; never negative."""
    difference = reference - logprobs
    return torch.exp(difference) - difference - 1


def token_weights(kind: Aggregation, counts: Tensor, *, constant_tokens: int) -> Tensor:
    """Return the weight of one token of each sequence, given its number of sampled tokens.

    Sequences without a sampled token count as sequences and weigh nothing themselves.
    """
    sequences = max(len(counts), 1)
    match kind:
        case "token_mean":
            return torch.full_like(counts, 1.0) / counts.sum().clamp(min=1)
        case "sequence_mean":
            return 1.0 / (counts.clamp(min=1) * sequences)
        case "dr_grpo":
            return torch.full_like(counts, 1.0 / (sequences * constant_tokens))
