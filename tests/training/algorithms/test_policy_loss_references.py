"""Every algorithm, correction and aggregation against the formulas written out in plain Python."""

import pytest

from benchmarks.algorithm_parts.batches import SHAPES, make_attempts
from benchmarks.algorithm_parts.cases import CASES
from benchmarks.algorithm_parts.product import Product, compare
from rollart.plugins import BUILT_IN
from rollart.training.options import read_algorithm


def test_every_shipped_algorithm_is_among_the_cases():
    assert {kind for kind, _ in CASES.values()} == set(BUILT_IN["algorithm"])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_written_out(name, shape):
    kind, options = CASES[name]
    attempts = make_attempts(SHAPES[shape], seed=len(name), spread=0.25)
    found = compare(kind, options, attempts, micro_batches=3)
    assert found.value < 1e-9
    assert found.gradient < 1e-8


@pytest.mark.parametrize("name", CASES)
def test_the_cases_have_gradients_and_do_not_depend_on_micro_batches(name):
    kind, options = CASES[name]
    algorithm = read_algorithm({"type": kind, **options})
    attempts = make_attempts(SHAPES["mixed"], seed=1, spread=0.25)
    whole, cut = Product(algorithm, attempts, 1), Product(algorithm, attempts, 5)
    assert any(whole.gradients)
    assert cut.total == pytest.approx(whole.total, abs=1e-12)
    assert cut.gradients == pytest.approx(whole.gradients, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("gspo_wide", "clip_fraction"),
        ("gspo_token", "clip_fraction"),
        ("cispo", "clip_fraction"),
        ("gmpo", "clip_fraction"),
        ("topr", "clip_fraction"),
        ("dppo_tv", "clip_fraction"),
        ("dppo_kl", "clip_fraction"),
        ("clip_cov", "covariance_fraction"),
        ("kl_cov", "covariance_fraction"),
        ("correction_decoupled", "correction_capped_fraction"),
        ("correction_sequence_tis", "correction_capped_fraction"),
        ("correction_icepop", "rejected_fraction"),
        ("correction_sequence_rejection", "rejected_fraction"),
        ("correction_geometric_rejection", "rejected_fraction"),
        ("correction_m2po", "rejected_fraction"),
        ("correction_opsm", "rejected_fraction"),
    ],
)
def test_the_bounds_of_the_cases_bind_for_some_tokens_and_not_for_all(name, metric):
    kind, options = CASES[name]
    attempts = make_attempts(SHAPES["mixed"], seed=1, spread=0.25)
    found = Product(read_algorithm({"type": kind, **options}), attempts, 1).metrics[0][metric]
    assert 0 < found.double().mean() < 1
