"""Every loss against its formula written out in plain Python, one token at a time, in float64."""

import math

import numpy as np
import pytest
import torch

from rollart.training.losses import importance_weights, k3_divergence, policy_terms, token_weights

RANDOM = np.random.default_rng(0)
COUNT = 200
LOGPROBS = (-RANDOM.random(COUNT) * 3).tolist()
PROXIMAL = (np.array(LOGPROBS) + RANDOM.normal(0, 0.3, COUNT)).tolist()
BEHAVIOUR = (np.array(PROXIMAL) + RANDOM.normal(0, 0.8, COUNT)).tolist()
ADVANTAGES = RANDOM.normal(0, 1, COUNT).tolist()
ADVANTAGES[::10] = [0.0] * len(ADVANTAGES[::10])


def tensor(values, **options) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, **options)


def policy_loss_of_a_token(logp, proximal, behaviour, advantage, *, cap, low, high) -> float:
    ratio = math.exp(logp - proximal)
    clipped = min(max(ratio, 1 - low), 1 + high)
    weight = min(math.exp(proximal - behaviour), cap)
    return -weight * min(ratio * advantage, clipped * advantage)


@pytest.mark.parametrize(
    ("low", "high", "cap"), [(0.2, 0.28, 2.0), (0.0, 0.0, 1.0), (1.0, 9.0, 50.0)]
)
def test_the_decoupled_policy_loss_is_its_formula(low, high, cap):
    terms = policy_terms(
        tensor(LOGPROBS),
        proximal=tensor(PROXIMAL),
        advantages=tensor(ADVANTAGES),
        corrections=importance_weights(tensor(PROXIMAL), tensor(BEHAVIOUR)),
        cap=cap,
        clip_low=low,
        clip_high=high,
    )
    rows = list(zip(LOGPROBS, PROXIMAL, BEHAVIOUR, ADVANTAGES, strict=True))
    expected = [policy_loss_of_a_token(*row, cap=cap, low=low, high=high) for row in rows]
    np.testing.assert_allclose(terms.losses, expected, rtol=0, atol=1e-9)
    ratios = [math.exp(logp - proximal) for logp, proximal, _, _ in rows]
    raw = [math.exp(proximal - behaviour) for _, proximal, behaviour, _ in rows]
    np.testing.assert_allclose(terms.ratios, ratios, rtol=1e-12)
    np.testing.assert_allclose(terms.corrections, [min(w, cap) for w in raw], rtol=1e-12)
    assert terms.is_capped.tolist() == [w > cap for w in raw]
    assert terms.is_clipped.tolist() == [
        (a > 0 and r > 1 + high) or (a < 0 and r < 1 - low)
        for r, a in zip(ratios, ADVANTAGES, strict=True)
    ]


def test_without_correction_it_is_plain_ppo_against_the_behaviour():
    terms = policy_terms(
        tensor(LOGPROBS),
        proximal=tensor(BEHAVIOUR),
        advantages=tensor(ADVANTAGES),
        corrections=importance_weights(tensor(BEHAVIOUR), tensor(BEHAVIOUR)),
        cap=2.0,
        clip_low=0.2,
        clip_high=0.28,
    )
    expected = [
        -min(math.exp(p - b) * a, min(max(math.exp(p - b), 0.8), 1.28) * a)
        for p, b, a in zip(LOGPROBS, BEHAVIOUR, ADVANTAGES, strict=True)
    ]
    np.testing.assert_allclose(terms.losses, expected, rtol=0, atol=1e-9)


def test_the_gradient_is_that_of_the_ratio_alone_and_stops_where_clipped():
    logprobs = tensor(LOGPROBS, requires_grad=True)
    terms = policy_terms(
        logprobs,
        proximal=tensor(PROXIMAL),
        advantages=tensor(ADVANTAGES),
        corrections=importance_weights(tensor(PROXIMAL), tensor(BEHAVIOUR)),
        cap=2.0,
        clip_low=0.2,
        clip_high=0.28,
    )
    terms.losses.sum().backward()
    expected = []
    for p, q, b, a in zip(LOGPROBS, PROXIMAL, BEHAVIOUR, ADVANTAGES, strict=True):
        ratio = math.exp(p - q)
        stopped = (a > 0 and ratio > 1.28) or (a < 0 and ratio < 0.8)
        expected.append(0.0 if stopped else -min(math.exp(q - b), 2.0) * a * ratio)
    np.testing.assert_allclose(logprobs.grad, expected, rtol=0, atol=1e-9)


def test_importance_weights_carry_no_gradient():
    logprobs = tensor(LOGPROBS, requires_grad=True)
    assert not importance_weights(logprobs, tensor(BEHAVIOUR)).requires_grad


def test_k3_is_its_formula_and_never_negative():
    found = k3_divergence(tensor(LOGPROBS), tensor(BEHAVIOUR))
    expected = [math.exp(r - p) - (r - p) - 1 for p, r in zip(LOGPROBS, BEHAVIOUR, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert (found >= 0).all()
    assert k3_divergence(tensor(LOGPROBS), tensor(LOGPROBS)).tolist() == [0.0] * COUNT


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token_mean", [1 / 8, 1 / 8, 1 / 8]),
        ("sequence_mean", [1 / (3 * 5), 1 / 3, 1 / (3 * 3)]),
        ("dr_grpo", [1 / (3 * 64)] * 3),
    ],
)
def test_token_weights_are_their_formulas(kind, expected):
    counts = tensor([5, 0, 3])
    found = token_weights(kind, counts, constant_tokens=64)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["token_mean", "sequence_mean", "dr_grpo"])
def test_no_sequences_and_no_tokens_give_finite_weights(kind):
    assert token_weights(kind, tensor([]), constant_tokens=4).tolist() == []
    assert torch.isfinite(token_weights(kind, tensor([0, 0]), constant_tokens=4)).all()
