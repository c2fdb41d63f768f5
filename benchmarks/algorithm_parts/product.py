"""The product's advantages, losses and gradients on hand-made batches, beside those written out."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import torch

from benchmarks.algorithm_parts import written_out
from benchmarks.algorithm_parts.batches import Attempt, Drawn, encode_attempts
from rollart.training.losses import compute_advantages
from rollart.training.options import read_algorithm
from rollart.training_ports import Algorithm
from rollart.types.tokens import LossTerms, TokenBatch

STEP = 1e-5
"""Half the width of a difference quotient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """The largest differences between product and formula."""

    value: float
    gradient: float


def compare(
    kind: str, options: Mapping[str, Any], attempts: list[Attempt], *, micro_batches: int
) -> Errors:
    """Compare advantages, token losses, their sum and its gradient, in float64."""
    algorithm = read_algorithm({"type": kind, **options})
    values = asdict(cast("Any", algorithm))
    for attempt in attempts:
        for token in attempt.tokens:
            token.held = token.logp
    chosen = written_out.prepare(kind, values, attempts)
    wanted = written_out.token_losses(kind, values, attempts, chosen)
    found = Product(algorithm, attempts, micro_batches)
    tokens = [token for attempt in attempts for token in attempt.tokens]
    pairs = [
        (found.advantages, [token.advantage for token in tokens]),
        (found.losses, [loss for own in wanted for loss in own]),
        ([found.total], [written_out.total(kind, values, attempts)]),
    ]
    slopes = [_slope(kind, values, attempts, token) for token in tokens]
    return Errors(
        value=max(_largest(mine, theirs) for mine, theirs in pairs),
        gradient=_largest(found.gradients, slopes),
    )


class Product:
    """What an algorithm makes of attempts whose log-probs are given, micro-batch by micro-batch."""

    def __init__(self, algorithm: Algorithm, attempts: list[Attempt], micro_batches: int) -> None:
        batch = encode_attempts(attempts)
        places = np.flatnonzero(batch.sampled)
        tokens = [token for attempt in attempts for token in attempt.tokens]
        view = view_of(attempts)
        advantages, extra = compute_advantages(algorithm, view)
        weights = algorithm.token_weights(view.sampled_counts, view.groups)
        self.advantages: list[float] = advantages[places].tolist()
        self.losses: list[float] = [0.0] * len(tokens)
        self.gradients: list[float] = [0.0] * len(tokens)
        self.total = 0.0
        self.metrics: list[dict[str, torch.Tensor]] = []
        owners = batch.owners[places]
        for part in range(micro_batches):
            own = np.flatnonzero(owners % micro_batches == part)
            if not len(own):
                continue
            at, some = places[own], [tokens[index] for index in own]
            logprobs = _tensor([token.logp for token in some]).requires_grad_()
            terms = LossTerms(
                logprobs=logprobs,
                proximal=_tensor([token.proximal for token in some]),
                behaviour=_tensor([token.behaviour for token in some]),
                reference=_tensor([token.reference for token in some])
                if algorithm.needs.reference
                else None,
                advantages=_tensor(advantages[at]),
                entropies=_tensor([token.entropy for token in some]),
                owners=torch.from_numpy(batch.owners[at]),
                turns=torch.from_numpy(batch.turns[at].astype(np.int64)),
                weights=_tensor(weights[batch.owners[at]]),
                columns={name: _tensor(values[at]) for name, values in extra.items()},
            )
            result = algorithm.loss(terms)
            loss = (terms.weights * result.losses).sum()
            loss.backward()
            assert logprobs.grad is not None
            self.total += loss.item()
            self.metrics.append({**result.means, **result.maxima})
            losses: list[float] = result.losses.tolist()
            slopes: list[float] = logprobs.grad.tolist()
            for index, value, slope in zip(own, losses, slopes, strict=True):
                self.losses[index], self.gradients[index] = value, slope


def view_of(attempts: list[Attempt]) -> TokenBatch:
    """Return attempts as an algorithm sees them, with the model's log-probs."""
    batch = encode_attempts(attempts)
    tokens = [token for attempt in attempts for token in attempt.tokens]
    proximal, reference = np.zeros(len(batch.tokens)), np.zeros(len(batch.tokens))
    proximal[batch.sampled] = [token.proximal for token in tokens]
    reference[batch.sampled] = [token.reference for token in tokens]
    given = cast("Any", {"proximal": proximal, "reference": reference})
    return batch.view(version=0, **given)


def _slope(kind: str, values: Mapping[str, Any], attempts: list[Attempt], token: Drawn) -> float:
    """Return the difference quotient of the written-out loss by one token's log-prob."""
    at = token.logp
    token.logp = at + STEP
    above = written_out.total(kind, values, attempts)
    token.logp = at - STEP
    below = written_out.total(kind, values, attempts)
    token.logp = at
    return (above - below) / (2 * STEP)


def _tensor(values: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def _largest(found: list[float], wanted: list[float]) -> float:
    return max((abs(a - b) for a, b in zip(found, wanted, strict=True)), default=0.0)
