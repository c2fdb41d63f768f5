"""The loss of a micro-batch: model scores in, an algorithm's losses and measures out.

`Columns` holds what the loss needs of every token of the batch, as tensors; a micro-batch picks its
sampled tokens by place. Token weights are set for a whole minibatch before it is cut up, so
micro-batches, and ranks, only split a sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollart.errors import InvariantError
from rollart.training.batch import Batch
from rollart.training.metrics import Measures
from rollart.training.model import Model, TokenFilters, score
from rollart.training.packing import MicroBatch
from rollart.training_ports import Algorithm, TokenColumns
from rollart.types.tokens import Floats, LossTerms, TokenBatch


@dataclass(slots=True, kw_only=True)
class Columns:
    """One value per token of the batch, on the trainer's device.

    Example:
        >>> columns = Columns.of(batch, version=7, device="cpu")
        >>> columns.set_advantages(np.ones(len(batch.tokens)), {})

    """

    targets: Tensor
    behaviour: Tensor
    temperatures: Tensor
    is_current: Tensor
    """Drawn by the very weights this step starts from."""
    owners: Tensor
    turns: Tensor
    advantages: Tensor
    weights: Tensor
    """Share of each token in the loss of the present minibatch."""
    extra: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What the algorithm adds to each token."""
    filters: TokenFilters | None = None
    """What was cut off the distributions; None: nothing."""
    proximal: Tensor | None = None
    """Log-probs under the weights at the start of the step; None: those of the forward itself."""
    reference: Tensor | None = None

    @classmethod
    def of(cls, batch: Batch, *, version: int, device: str) -> "Columns":
        """Spread a batch over its tokens; advantages and weights are 0 until they are set."""
        owners = batch.owners
        temperatures = batch.temperatures[owners].astype(np.float32)
        return cls(
            targets=torch.from_numpy(batch.tokens.astype(np.int64)).to(device),
            behaviour=torch.from_numpy(batch.logprobs.copy()).to(device),
            temperatures=torch.from_numpy(temperatures).to(device),
            is_current=torch.from_numpy(batch.versions == version).to(device),
            owners=torch.from_numpy(owners).to(device),
            turns=torch.from_numpy(batch.turns.astype(np.int64)).to(device),
            advantages=torch.zeros(len(owners), device=device),
            weights=torch.zeros(len(owners), device=device),
            filters=TokenFilters(
                top_p=torch.from_numpy(batch.top_ps[owners]).to(device),
                top_k=torch.from_numpy(batch.top_ks[owners]).to(device),
                min_p=torch.from_numpy(batch.min_ps[owners].astype(np.float32)).to(device),
            )
            if batch.is_truncated
            else None,
        )

    def set_advantages(self, advantages: Floats, extra: Mapping[str, Floats]) -> None:
        """Set what the algorithm says of each token."""
        device = self.weights.device

        def moved(values: Floats) -> Tensor:
            return torch.from_numpy(values.astype(np.float32)).to(device)

        self.advantages = moved(advantages)
        self.extra = {name: moved(values) for name, values in extra.items()}

    def shares(self, sampled: NDArray[np.bool_]) -> dict[str, float]:
        """Return the mean of each further column over the batch's sampled tokens."""
        drawn = torch.tensor(sampled, device=self.weights.device)
        count = max(int(sampled.sum()), 1)
        return {name: float(values[drawn].sum()) / count for name, values in self.extra.items()}

    def weigh(self, algorithm: Algorithm, batch: Batch, sequences: NDArray[np.int64]) -> None:
        """Set the weights for a minibatch of these sequences."""
        counts = batch.sampled_counts
        shares = np.zeros(len(counts))
        shares[sequences] = algorithm.token_weights(counts[sequences], batch.groups[sequences])
        moved = torch.from_numpy(shares).to(self.weights.device, self.weights.dtype)
        self.weights = moved[self.owners]


def compute_advantages(
    algorithm: Algorithm, batch: TokenBatch
) -> tuple[Floats, Mapping[str, Floats]]:
    """Return an algorithm's advantages and further columns of all tokens, checked."""
    advantages = algorithm.advantages(batch)
    extra = algorithm.columns(batch, advantages) if isinstance(algorithm, TokenColumns) else {}
    for name, values in {"advantages": advantages, **extra}.items():
        shape = np.shape(values)
        if shape != batch.owners.shape:
            raise InvariantError(
                f"{type(algorithm).__name__} gave {name} of shape {shape}; "
                f"it must be one value for each of the batch's {len(batch.owners)} tokens"
            )
    return advantages, extra


def evaluate(
    model: Model,
    micro: MicroBatch,
    columns: Columns,
    *,
    algorithm: Algorithm,
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
        entropy_grad=algorithm.needs.entropy,
        filters=None if columns.filters is None else columns.filters[places],
    )
    if not len(places):
        return scores.logprobs.sum()
    behaviour, weights = columns.behaviour[places], columns.weights[places]
    proximal = scores.logprobs.detach() if columns.proximal is None else columns.proximal[places]
    result = algorithm.loss(
        LossTerms(
            logprobs=scores.logprobs,
            proximal=proximal,
            behaviour=behaviour,
            reference=None if columns.reference is None else columns.reference[places],
            advantages=columns.advantages[places],
            entropies=scores.entropies,
            owners=columns.owners[places],
            turns=columns.turns[places],
            weights=weights,
            columns={name: values[places] for name, values in columns.extra.items()},
        )
    )
    loss = (weights * result.losses).sum()
    drift = torch.where(columns.is_current[places], (proximal - behaviour).abs(), 0.0)
    means = {"entropy": scores.entropies, **result.means}
    maxima = {"logprob_difference": drift, **result.maxima}
    measures.add(
        len(places),
        sums={
            "loss": loss,
            **{name: (weights * values).sum() for name, values in result.parts.items()},
        },
        totals={name: values.sum() for name, values in means.items()},
        maxima={name: values.max() for name, values in maxima.items()},
    )
    return loss


@torch.no_grad()
def logprobs_of(
    model: Model, micros: list[MicroBatch], columns: Columns, *, is_whole: bool = False
) -> Tensor:
    """Return the log-probs of all laid-out sampled tokens, at their places; 0 elsewhere.

    `is_whole`: of the whole distribution, whatever was cut off when they were drawn.
    """
    result = torch.zeros_like(columns.behaviour)
    for micro in micros:
        places = torch.from_numpy(micro.places).to(result.device)
        result[places] = score(
            model,
            micro,
            targets=columns.targets[places],
            temperatures=columns.temperatures[places],
            entropy_grad=False,
            filters=None if is_whole or columns.filters is None else columns.filters[places],
        ).logprobs
    return result
