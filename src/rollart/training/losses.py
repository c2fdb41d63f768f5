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

The objective on one micro-batch: model scores in, loss and measures out.

`Columns` holds what the loss needs of every token of the batch, as tensors; a micro-batch picks
its sampled tokens by place.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollart.training.batch import Batch
from rollart.training.metrics import Measures
from rollart.training.model import Model, score
from rollart.training.options import Aggregation, TrainingOptions
from rollart.training.packing import MicroBatch


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


@dataclass(slots=True, kw_only=True)
class Columns:
    """One value per token of the batch, on the trainer's device."""

    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    temperatures: Tensor
    is_current: Tensor
    """Drawn by the very weights this step starts from."""
    owners: Tensor
    weights: Tensor
    """Share of each token in the loss of the present minibatch."""
    proximal: Tensor | None = None
    """Log-probs under the weights at the start of the step; None: those of the forward itself."""
    reference: Tensor | None = None

    @classmethod
    def of(
        cls, batch: Batch, advantages: NDArray[np.float64], *, version: int, device: str
    ) -> "Columns":
        """Spread a batch over its tokens."""
        owners = batch.owners

        def spread(values: NDArray[np.float64]) -> Tensor:
            return torch.from_numpy(values[owners].astype(np.float32)).to(device)

        return cls(
            targets=torch.from_numpy(batch.tokens.astype(np.int64)).to(device),
            behaviour=torch.from_numpy(batch.logprobs.copy()).to(device),
            advantages=spread(advantages),
            temperatures=spread(batch.temperatures),
            is_current=torch.from_numpy(batch.versions == version).to(device),
            owners=torch.from_numpy(owners).to(device),
            weights=torch.zeros(len(owners), device=device),
        )

    def weigh(
        self, counts: NDArray[np.int64], sequences: NDArray[np.int64], options: TrainingOptions
    ) -> None:
        """Set the weights for a minibatch of these sequences, given all sampled-token counts."""
        device = self.weights.device
        shares = torch.zeros(len(counts), dtype=torch.float64)
        shares[torch.from_numpy(sequences)] = token_weights(
            options.aggregation,
            torch.from_numpy(counts[sequences].astype(np.float64)),
            constant_tokens=options.constant_tokens,
        )
        self.weights = shares.to(device, self.weights.dtype)[self.owners]


def evaluate(
    model: Model,
    micro: MicroBatch,
    columns: Columns,
    *,
    options: TrainingOptions,
    measures: Measures,
) -> Tensor:
    """Return the micro-batch's share of the loss and add to the measures.

    An idle one's is 0, with the gradients' graph: other ranks wait for its backward pass.
    """
    places = torch.from_numpy(micro.places).to(columns.targets.device)
    scores = score(
        model,
        micro,
        targets=columns.targets[places],
        temperatures=columns.temperatures[places],
        entropy_grad=options.entropy_coefficient > 0,
    )
    if not len(places):
        return scores.logprobs.sum()
    behaviour, weights = columns.behaviour[places], columns.weights[places]
    present = scores.logprobs.detach() if columns.proximal is None else columns.proximal[places]
    is_decoupled = options.correction == "decoupled"
    proximal = present if is_decoupled else behaviour
    terms = policy_terms(
        scores.logprobs,
        proximal=proximal,
        advantages=columns.advantages[places],
        corrections=importance_weights(proximal, behaviour),
        cap=options.correction_cap,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
    )
    policy_loss = (weights * terms.losses).sum()
    entropy = (weights * scores.entropies).sum()
    kl = torch.zeros_like(policy_loss)
    if columns.reference is not None:
        kl = (weights * k3_divergence(scores.logprobs, columns.reference[places])).sum()
    loss = policy_loss + options.kl_coefficient * kl - options.entropy_coefficient * entropy
    drift = torch.where(columns.is_current[places], (present - behaviour).abs(), 0.0)
    measures.add(
        len(places),
        {
            "loss": loss,
            "policy_loss": policy_loss,
            "kl": kl,
            "entropy": scores.entropies.sum(),
            "clipped": terms.is_clipped.sum(),
            "corrections": terms.corrections.sum(),
            "capped": terms.is_capped.sum(),
        },
        {"ratio": terms.ratios.max(), "drift": drift.max()},
    )
    return loss


@torch.no_grad()
def logprobs_of(model: Model, micros: list[MicroBatch], columns: Columns) -> Tensor:
    """Return the log-probs of all laid-out sampled tokens, at their places; 0 elsewhere."""
    result = torch.zeros_like(columns.behaviour)
    for micro in micros:
        places = torch.from_numpy(micro.places).to(result.device)
        result[places] = score(
            model,
            micro,
            targets=columns.targets[places],
            temperatures=columns.temperatures[places],
            entropy_grad=False,
        ).logprobs
    return result
