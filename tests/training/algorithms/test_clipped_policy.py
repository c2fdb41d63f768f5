"""Every loss against its formula written out in plain Python, one token at a time, in float64."""

import math

import numpy as np
import pytest
import torch

from rollart.errors import ConfigError
from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.training.algorithms.policy_loss import kl_divergence, weigh_tokens
from rollart.types.tokens import AlgorithmNeeds, LossTerms

RANDOM = np.random.default_rng(0)
COUNT = 200
LOGPROBS = (-RANDOM.random(COUNT) * 3).tolist()
PROXIMAL = (np.array(LOGPROBS) + RANDOM.normal(0, 0.3, COUNT)).tolist()
BEHAVIOUR = (np.array(PROXIMAL) + RANDOM.normal(0, 0.8, COUNT)).tolist()
ADVANTAGES = RANDOM.normal(0, 1, COUNT).tolist()
ENTROPIES = RANDOM.random(COUNT).tolist()
ADVANTAGES[::10] = [0.0] * len(ADVANTAGES[::10])


def tensor(values, **options) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, **options)


def terms_of(logprobs: torch.Tensor, **changed) -> LossTerms:
    values = {
        "logprobs": logprobs,
        "proximal": tensor(PROXIMAL),
        "behaviour": tensor(BEHAVIOUR),
        "reference": None,
        "advantages": tensor(ADVANTAGES),
        "entropies": tensor(ENTROPIES),
        "owners": torch.zeros(COUNT, dtype=torch.int64),
        "turns": torch.zeros(COUNT, dtype=torch.int64),
        "weights": torch.ones(COUNT, dtype=torch.float64),
    }
    return LossTerms(**{**values, **changed})


def policy_loss_of_a_token(logp, proximal, behaviour, advantage, *, cap, low, high) -> float:
    ratio = math.exp(logp - proximal)
    clipped = min(max(ratio, 1 - low), 1 + high)
    weight = min(math.exp(proximal - behaviour), cap)
    return -weight * min(ratio * advantage, clipped * advantage)


@pytest.mark.parametrize(
    ("low", "high", "cap"), [(0.2, 0.28, 2.0), (0.0, 0.0, 1.0), (1.0, 9.0, 50.0)]
)
def test_the_decoupled_policy_loss_is_its_formula(low, high, cap):
    policy = ClippedPolicy(clip_low=low, clip_high=high, correction_cap=cap)
    found = policy.loss(terms_of(tensor(LOGPROBS)))
    rows = list(zip(LOGPROBS, PROXIMAL, BEHAVIOUR, ADVANTAGES, strict=True))
    expected = [policy_loss_of_a_token(*row, cap=cap, low=low, high=high) for row in rows]
    np.testing.assert_allclose(found.losses, expected, rtol=0, atol=1e-9)
    assert found.parts.keys() == {"policy_loss"}
    np.testing.assert_array_equal(found.parts["policy_loss"], found.losses)
    ratios = [math.exp(logp - proximal) for logp, proximal, _, _ in rows]
    raw = [math.exp(proximal - behaviour) for _, proximal, behaviour, _ in rows]
    np.testing.assert_allclose(found.maxima["ratio_max"], ratios, rtol=1e-12)
    corrections = [min(w, cap) for w in raw]
    np.testing.assert_allclose(found.means["correction_mean"], corrections, rtol=1e-12)
    assert found.means["correction_capped_fraction"].tolist() == [w > cap for w in raw]
    assert found.means["clip_fraction"].tolist() == [
        (a > 0 and r > 1 + high) or (a < 0 and r < 1 - low)
        for r, a in zip(ratios, ADVANTAGES, strict=True)
    ]


def test_without_correction_it_is_plain_ppo_against_the_behaviour():
    found = ClippedPolicy(correction="none").loss(terms_of(tensor(LOGPROBS)))
    expected = [
        -min(math.exp(p - b) * a, min(max(math.exp(p - b), 0.8), 1.28) * a)
        for p, b, a in zip(LOGPROBS, BEHAVIOUR, ADVANTAGES, strict=True)
    ]
    np.testing.assert_allclose(found.losses, expected, rtol=0, atol=1e-9)
    assert found.means["correction_mean"].tolist() == [1.0] * COUNT


def test_divergence_and_entropy_are_added_to_the_policy_loss():
    reference = [value - 0.1 for value in BEHAVIOUR]
    policy = ClippedPolicy(kl_coefficient=0.3, entropy_coefficient=0.05)
    found = policy.loss(terms_of(tensor(LOGPROBS), reference=tensor(reference)))
    expected = []
    for p, q, b, a, r, h in zip(
        LOGPROBS, PROXIMAL, BEHAVIOUR, ADVANTAGES, reference, ENTROPIES, strict=True
    ):
        loss = policy_loss_of_a_token(p, q, b, a, cap=2.0, low=0.2, high=0.28)
        share = min(math.exp(q - b), 2.0) * math.exp(p - q)
        expected.append(loss + 0.3 * share * (math.exp(r - p) - (r - p) - 1) - 0.05 * h)
    np.testing.assert_allclose(found.losses, expected, rtol=0, atol=1e-9)
    assert found.parts.keys() == {"policy_loss", "kl"}


def test_only_a_divergence_needs_a_reference_and_only_a_bonus_gradients_of_entropy():
    assert ClippedPolicy().needs == AlgorithmNeeds(min_group_size=2)
    assert ClippedPolicy(kl_coefficient=0.1).needs == AlgorithmNeeds(
        min_group_size=2, reference=True, idle_tokens=True
    )
    assert ClippedPolicy(entropy_coefficient=0.1).needs == AlgorithmNeeds(
        min_group_size=2, entropy=True, idle_tokens=True
    )


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("aggregation", "sum", "must be one of token_mean, sequence_mean, prompt_mean, constant"),
        (
            "correction",
            "full",
            "must be one of none, decoupled, tis, icepop, sequence_tis, sequence_rejection, "
            "geometric_rejection, m2po, opsm",
        ),
        ("correction_cap", 0.5, "must be at least 1 (what is on policy weighs 1)"),
        ("clip_high", math.nan, "must be a finite number"),
        ("clip_high", -0.1, "must be at least 0"),
        ("kl_coefficient", -1.0, "must be at least 0"),
        ("entropy_coefficient", -1.0, "must be at least 0"),
        ("clip_low", 1.5, "must lie between 0 and 1"),
        ("constant_tokens", 0, "must be at least 1"),
        ("dual_clip", -1.0, "must be at least 0"),
        ("kl_estimator", "k4", "must be one of k1, k2, k3"),
        (
            "dual_clip",
            0.9,
            "must be more than 1, or 0 for no bound: at 1 it would stop tokens on policy",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_fix(field: str, value: object, fix: str):
    with pytest.raises(ConfigError) as caught:
        ClippedPolicy(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"algorithm.{field} = {value!r}: {fix}"


def test_the_gradient_is_that_of_the_ratio_alone_and_stops_where_clipped():
    logprobs = tensor(LOGPROBS, requires_grad=True)
    ClippedPolicy().loss(terms_of(logprobs)).losses.sum().backward()
    expected = []
    for p, q, b, a in zip(LOGPROBS, PROXIMAL, BEHAVIOUR, ADVANTAGES, strict=True):
        ratio = math.exp(p - q)
        stopped = (a > 0 and ratio > 1.28) or (a < 0 and ratio < 0.8)
        expected.append(0.0 if stopped else -min(math.exp(q - b), 2.0) * a * ratio)
    np.testing.assert_allclose(logprobs.grad, expected, rtol=0, atol=1e-9)


def test_importance_weights_carry_no_gradient():
    proximal = tensor(PROXIMAL, requires_grad=True)
    found = ClippedPolicy().loss(terms_of(tensor(LOGPROBS), proximal=proximal))
    assert not found.means["correction_mean"].requires_grad


@pytest.mark.parametrize(
    ("estimator", "formula"),
    [
        ("k1", lambda d: d),
        ("k2", lambda d: d * d / 2),
        ("k3", lambda d: math.exp(-d) + d - 1),
    ],
)
def test_an_estimator_is_its_formula_and_its_gradient_that_of_k2(estimator, formula):
    logprobs, ones = tensor(LOGPROBS, requires_grad=True), torch.ones(COUNT, dtype=torch.float64)
    found = kl_divergence(logprobs, tensor(BEHAVIOUR), weights=2 * ones, estimator=estimator)
    gaps = [p - r for p, r in zip(LOGPROBS, BEHAVIOUR, strict=True)]
    np.testing.assert_allclose(found.detach(), [2 * formula(d) for d in gaps], rtol=0, atol=1e-9)
    found.sum().backward()
    np.testing.assert_allclose(logprobs.grad, [2 * d for d in gaps], rtol=0, atol=1e-12)


LOGITS = tensor([0.4, -0.3, 1.1, -1.2, 0.0])
REFERENCE = torch.log_softmax(tensor([-0.6, 0.2, 0.5, 0.9, -0.1]), -1)
OLDER = torch.log_softmax(LOGITS + tensor([0.3, -0.2, -0.15, 0.25, 0.1]), -1)
FIRST = torch.log_softmax(LOGITS + tensor([0.05, 0.1, -0.1, 0.0, 0.02]), -1)


def expected_divergence(policy: ClippedPolicy, proximal: torch.Tensor, behaviour: torch.Tensor):
    """The mean of the loss over all five tokens as the behaviour draws them, and its gradient."""
    logits = LOGITS.clone().requires_grad_()
    five = torch.zeros(5, dtype=torch.float64)
    found = policy.loss(
        terms_of(
            torch.log_softmax(logits, -1),
            proximal=proximal,
            behaviour=behaviour,
            reference=REFERENCE,
            advantages=five,
            entropies=five,
            owners=torch.zeros(5, dtype=torch.int64),
            turns=torch.zeros(5, dtype=torch.int64),
        )
    )
    mean = (behaviour.exp() * found.losses).sum()
    mean.backward()
    return mean.item(), logits.grad


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize(
    ("correction", "proximal", "behaviour"),
    [
        ("decoupled", LOGITS.log_softmax(-1), LOGITS.log_softmax(-1)),
        ("decoupled", LOGITS.log_softmax(-1), OLDER),
        ("decoupled", FIRST, OLDER),
        ("none", FIRST, LOGITS.log_softmax(-1)),
        ("none", FIRST, OLDER),
    ],
    ids=["on policy", "stale", "stale, second update", "plain, on policy", "plain, stale"],
)
def test_the_divergence_is_kl_of_policy_to_reference_in_value_and_gradient(
    estimator, correction, proximal, behaviour
):
    """Enumerated: every token of a softmax, weighed by how often the behaviour draws it."""
    policy = ClippedPolicy(kl_coefficient=1.0, kl_estimator=estimator, correction=correction)
    value, gradient = expected_divergence(policy, proximal, behaviour)
    logits = LOGITS.clone().requires_grad_()
    logprobs = torch.log_softmax(logits, -1)
    exact = (logprobs.exp() * (logprobs - REFERENCE)).sum()
    exact.backward()
    np.testing.assert_allclose(gradient, logits.grad, rtol=0, atol=1e-12)
    if estimator == "k2":  # its value is not the KL, only near it
        exact = (logprobs.exp() * (logprobs - REFERENCE) ** 2 / 2).sum()
    assert value == pytest.approx(exact.item(), abs=1e-12)


def test_by_itself_k3_would_pull_the_reference_to_the_policy():
    """The mistake that the straight gradient of k3 makes, as the fields' own example has it."""
    logits = tensor([0.5, 0.3, 0.2]).log().requires_grad_()
    reference = tensor([0.2, 0.3, 0.5]).log()
    logprobs = torch.log_softmax(logits, -1)
    gap = reference - logprobs
    (logprobs.exp().detach() * (gap.exp() - gap - 1)).sum().backward()
    np.testing.assert_allclose(logits.grad, [0.3, 0.0, -0.3], atol=1e-12)
    policy = torch.log_softmax(logits.detach(), -1)
    logits.grad = None
    ones = torch.ones(3, dtype=torch.float64)
    found = kl_divergence(torch.log_softmax(logits, -1), reference, weights=ones, estimator="k3")
    (policy.exp() * found).sum().backward()
    np.testing.assert_allclose(logits.grad, [0.3207, -0.0825, -0.2382], atol=1e-4)


def test_dual_clip_bounds_what_a_bad_token_costs_and_stops_its_gradient():
    logprobs = tensor([4.0, 4.0, 2.0, 0.5]).log().requires_grad_()
    zeros = torch.zeros(4, dtype=torch.float64)
    changed = {"proximal": zeros, "behaviour": zeros - math.log(1.5), "entropies": zeros}
    advantages = tensor([-1.0, 1.0, -2.0, -1.0])
    found = ClippedPolicy(dual_clip=3.0).loss(terms_of(logprobs, advantages=advantages, **changed))
    np.testing.assert_allclose(found.losses.detach(), [4.5, -1.92, 6.0, 1.2], atol=1e-12)
    assert found.means["dual_clip_fraction"].tolist() == [True, False, False, False]
    assert found.means["clip_fraction"].tolist() == [False, True, False, True]
    found.losses.sum().backward()
    np.testing.assert_allclose(logprobs.grad, [0.0, 0.0, 6.0, 0.0], atol=1e-12)
    plain = ClippedPolicy().loss(terms_of(logprobs, advantages=advantages, **changed))
    np.testing.assert_allclose(plain.losses.detach(), [6.0, -1.92, 6.0, 1.2], atol=1e-12)
    assert "dual_clip_fraction" not in plain.means


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token_mean", [1 / 8, 1 / 8, 1 / 8]),
        ("sequence_mean", [1 / (3 * 5), 1 / 3, 1 / (3 * 3)]),
        ("prompt_mean", [1 / (2 * 5), 1 / (2 * 5), 1 / (2 * 3)]),
        ("constant", [1 / (3 * 64)] * 3),
    ],
)
def test_token_weights_are_their_formulas(kind, expected):
    found = weigh_tokens(kind, np.array([5, 0, 3]), np.array([0, 0, 1]), constant_tokens=64)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["token_mean", "sequence_mean", "prompt_mean", "constant"])
def test_no_sequences_and_no_tokens_give_finite_weights(kind):
    none = np.zeros(0, np.int64)
    assert weigh_tokens(kind, none, none, constant_tokens=4).tolist() == []
    two = np.zeros(2, np.int64)
    assert np.isfinite(weigh_tokens(kind, two, two, constant_tokens=4)).all()
