"""The sampler: draws one token per row and returns its log-prob.

A draw inverts the cumulative distribution, in the order of token ids, at a uniform number that
depends only on the request's seed and the token's position in the completion. So the same request
draws the same tokens in any batch. The log-prob is that of the distribution after temperature and
filters; a greedy draw has only one outcome, so its log-prob is 0.
"""

import math
from collections.abc import Sequence

import numpy
import torch

from rollart.errors import ConfigError, ModelError
from rollart.types import Sampling

Filters = tuple[float, float, int, float]
"""temperature, top_p, top_k, min_p; rows with equal filters are drawn together."""


def read_filters(sampling: Sampling) -> Filters:
    """Check a request's sampling values and return those that shape the distribution."""
    if not 0 <= sampling.temperature < math.inf:
        fix = "must be at least 0 and finite"
        raise ConfigError("sampling.temperature", sampling.temperature, fix)
    if not 0 < sampling.top_p <= 1:
        raise ConfigError("sampling.top_p", sampling.top_p, "must be above 0 and at most 1")
    if not 0 <= sampling.top_k < math.inf:
        raise ConfigError("sampling.top_k", sampling.top_k, "must be at least 0; 0 keeps all")
    if not 0 <= sampling.min_p <= 1:
        raise ConfigError("sampling.min_p", sampling.min_p, "must lie between 0 and 1")
    if not 1 <= sampling.max_tokens < math.inf:
        raise ConfigError("sampling.max_tokens", sampling.max_tokens, "must be at least 1")
    return (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)


def uniforms(seed: int, count: int) -> list[float]:
    """Return `count` numbers in [0, 1) that depend only on `seed` and their position."""
    state = _mix(seed & _MASK)
    if count <= _FEW:
        places = range(1, count + 1)
        return [(_mix((state + place * _GOLDEN) & _MASK) >> 32) * 2.0**-32 for place in places]
    many = numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(_GOLDEN)
    mixed = _mix_many(many + numpy.uint64(state))
    return ((mixed >> numpy.uint64(32)) * 2.0**-32).tolist()


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FEW = 24
"""Up to this many numbers, Python integers are faster than numpy arrays."""


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_many(value: "numpy.ndarray[tuple[int], numpy.dtype[numpy.uint64]]"):
    value = (value ^ (value >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return value ^ (value >> numpy.uint64(31))


def sample(
    logits: torch.Tensor, filters: Sequence[Filters], places: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token per row of logits; return the tokens and their log-probs."""
    first = filters[0]
    if all(each is first or each == first for each in filters):
        return _draw(logits, first, places)
    tokens, logprobs = [0] * len(filters), [0.0] * len(filters)
    groups: dict[Filters, list[int]] = {}
    for index, each in enumerate(filters):
        groups.setdefault(each, []).append(index)
    for each, indices in groups.items():
        drawn = _draw(logits[indices], each, [places[index] for index in indices])
        for index, token, logprob in zip(indices, *drawn, strict=True):
            tokens[index], logprobs[index] = token, logprob
    return tokens, logprobs


def _draw(
    logits: torch.Tensor, filters: Filters, places: Sequence[float]
) -> tuple[list[int], list[float]]:
    temperature = filters[0]
    if temperature == 0:
        largest, tokens = logits.max(-1)
        _check_finite(largest.tolist())
        return tokens.tolist(), [0.0] * len(places)
    if temperature != 1:
        logits = logits / temperature
    chances = _filter(logits.softmax(-1), filters)
    sums = chances.cumsum(-1, dtype=torch.float64)
    totals = sums[:, -1:]
    targets = torch.tensor(places, dtype=torch.float64, device=logits.device).unsqueeze(1) * totals
    # With NaN sums searchsorted returns one past the last token; `_check_finite` then raises.
    tokens = torch.searchsorted(sums, targets, right=True).clamp_(max=logits.shape[-1] - 1)
    logprobs = (chances.gather(1, tokens) / totals).log_().view(-1).tolist()
    _check_finite(logprobs)
    return tokens.view(-1).tolist(), logprobs


def _check_finite(values: list[float]) -> None:
    """Raise if any value is not finite, which only bad logits cause; the sum shows any of them."""
    if not math.isfinite(sum(values)):
        raise ModelError("the model's logits are not finite: its weights are damaged or diverged")


def _filter(chances: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Zero what top-k, then top-p among the rest, then min-p exclude; do not renormalise."""
    _, top_p, top_k, min_p = filters
    if top_k or top_p < 1:
        ranked, ids = chances.sort(dim=-1, descending=True, stable=True)
        if top_k:
            ranked[:, top_k:] = 0
        if top_p < 1:
            before = ranked.cumsum(-1, dtype=torch.float64)
            enough = before[:, -1:] * top_p
            before = before.roll(1, -1)
            before[:, 0] = 0
            ranked[before >= enough] = 0
        chances = torch.zeros_like(chances).scatter_(1, ids, ranked)
    if min_p > 0:
        chances = chances * (chances >= chances.amax(-1, keepdim=True) * min_p)
    return chances
