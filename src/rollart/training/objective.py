"""The objective on one micro-batch: model scores in, loss and measures out.

`Columns` holds what the loss needs of every token of the batch, as tensors; a micro-batch picks
its sampled tokens by place.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollart.training.batch import Batch
from rollart.training.loss import importance_weights, k3_divergence, policy_terms, token_weights
from rollart.training.measures import Measures
from rollart.training.model import Model, score
from rollart.training.options import TrainingOptions
from rollart.training.packing import MicroBatch


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
