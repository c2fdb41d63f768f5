"""Draws and their log-probs against a plain Python reference."""

import math
import random

import pytest
import torch

from rollart.errors import ConfigError, ModelError
from rollart.inference.torch.sampler import Filters, read_filters, sample, uniforms
from rollart.types import Sampling


def reference(logits: list[float], filters: Filters) -> list[float]:
    """Return the distribution temperature and filters leave."""
    temperature, top_p, top_k, min_p = filters
    top = max(logits)
    chances = [math.exp((logit - top) / temperature) for logit in logits]
    ranked = sorted(range(len(chances)), key=lambda token: (-chances[token], token))
    kept = set(ranked[:top_k] if top_k else ranked)
    mass = sum(chances[token] for token in kept)
    reached, nucleus = 0.0, set[int]()
    for token in ranked:
        if token in kept and (top_p == 1 or reached < top_p * mass):
            nucleus.add(token)
            reached += chances[token]
    floor = min_p * max(chances)
    left = [c if t in nucleus and c >= floor else 0.0 for t, c in enumerate(chances)]
    return [chance / sum(left) for chance in left]


def expected_draw(chances: list[float], place: float) -> int:
    total = 0.0
    for token, chance in enumerate(chances):
        total += chance
        if total > place:
            return token
    raise AssertionError(place)


FILTERS: list[Filters] = [
    (1.0, 1.0, 0, 0.0),
    (0.7, 1.0, 0, 0.0),
    (1.3, 0.8, 0, 0.0),
    (1.0, 0.3, 5, 0.0),
    (1.0, 1.0, 3, 0.0),
    (1.0, 1.0, 1, 0.0),
    (1.0, 1.0, 0, 0.2),
    (0.9, 0.9, 8, 0.1),
    (1.0, 1.0, 500, 0.0),
]


@pytest.mark.parametrize("filters", FILTERS)
def test_draws_and_logprobs_are_the_references(filters: Filters) -> None:
    draw = random.Random(1)
    logits = [[draw.gauss(0, 2) for _ in range(23)] for _ in range(40)]
    places = uniforms(5, 40)
    tokens, logprobs = sample(torch.tensor(logits), [filters] * 40, places)
    for row, place, token, logprob in zip(logits, places, tokens, logprobs, strict=True):
        chances = reference(row, filters)
        assert token == expected_draw(chances, place)
        assert logprob == pytest.approx(math.log(chances[token]), abs=1e-5)


def test_rows_with_different_filters_are_drawn_each_by_its_own() -> None:
    draw = random.Random(2)
    logits = torch.tensor([[draw.gauss(0, 2) for _ in range(23)] for _ in range(18)])
    filters = FILTERS + [(0.0, 1.0, 0, 0.0)] * 9
    places = uniforms(6, 18)
    alone = [sample(logits[i : i + 1], [filters[i]], [places[i]]) for i in range(18)]
    tokens, logprobs = sample(logits, filters, places)
    assert tokens == [each[0][0] for each in alone]
    assert logprobs == pytest.approx([each[1][0] for each in alone], abs=1e-6)


def test_greedy_takes_the_likeliest_with_certainty() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])
    greedy: Filters = (0.0, 1.0, 0, 0.0)
    assert sample(logits, [greedy] * 2, [0.9, 0.9]) == ([1, 0], [0.0, 0.0])


def test_draws_are_never_of_tokens_without_a_chance() -> None:
    logits = torch.full((3, 7), float("-inf"))
    logits[:, 2] = 0.0
    tokens, logprobs = sample(logits, [FILTERS[0]] * 3, [0.0, 0.5, 1 - 2**-32])
    assert (tokens, logprobs) == ([2, 2, 2], [0.0, 0.0, 0.0])


@pytest.mark.parametrize("filters", [*FILTERS, (0.0, 1.0, 0, 0.0)])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("token", [0, 3, 6])
def test_logits_that_are_not_finite_are_told_of(filters: Filters, value: float, token: int) -> None:
    logits = torch.zeros(3, 7)
    logits[1, token] = value
    with pytest.raises(ModelError, match="the model's logits are not finite: its weights are dam"):
        sample(logits, [filters] * 3, [0.0, 0.5, 1 - 2**-32])


def test_frequencies_follow_the_distribution() -> None:
    chances = [0.5, 0.3, 0.15, 0.05]
    logits = torch.tensor([chances]).log().expand(20000, 4)
    tokens, _ = sample(logits, [FILTERS[0]] * 20000, uniforms(1, 20000))
    counts = [tokens.count(token) / 20000 for token in range(4)]
    assert counts == pytest.approx(chances, abs=0.015)


def test_uniforms_depend_on_seed_and_place_alone() -> None:
    assert uniforms(7, 5) == uniforms(7, 9)[:5]
    assert uniforms(7, 5) != uniforms(8, 5)
    assert uniforms(-1, 2) == uniforms(2**64 - 1, 2)
    assert all(0 <= place < 1 for place in uniforms(2**63, 1000))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
        ("top_k", math.nan),
        ("min_p", 1.5),
        ("min_p", math.nan),
        ("max_tokens", 0),
    ],
)
def test_values_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"sampling\.{field} = {value}"):
        read_filters(Sampling(**{field: value}))
