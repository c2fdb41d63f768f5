"""Distributions of durations: their means, spreads and tails."""

from math import log
from random import Random
from statistics import fmean, stdev

import pytest

from rollart.errors import ConfigError
from rollart.sim.workload import Latency, unit_lognormal

COUNT = 20_000


def draws(latency: Latency, count: int = COUNT) -> list[float]:
    random = Random(7)
    return [latency.draw(random) for _ in range(count)]


def test_a_constant_is_the_same_every_time():
    assert set(draws(Latency(mean_s=2.5), 10)) == {2.5}


def test_no_time_is_drawn_without_touching_the_random_numbers():
    random = Random(1)
    assert Latency(kind="lognormal", spread=2.0).draw(random) == 0.0
    assert random.random() == Random(1).random()


def test_a_normal_has_its_mean_and_its_relative_spread():
    values = draws(Latency(kind="normal", mean_s=10.0, spread=0.3))
    assert fmean(values) == pytest.approx(10.0, rel=0.01)
    assert stdev(values) == pytest.approx(3.0, rel=0.03)


def test_a_wide_normal_is_never_negative():
    assert min(draws(Latency(kind="normal", mean_s=1.0, spread=3.0))) == 0.0


def test_a_lognormal_has_its_mean_and_the_spread_of_its_logarithm():
    values = draws(Latency(kind="lognormal", mean_s=10.0, spread=0.8))
    assert fmean(values) == pytest.approx(10.0, rel=0.03)
    assert stdev(map(log, values)) == pytest.approx(0.8, rel=0.03)


def test_a_tail_lengthens_its_share_of_the_draws():
    values = draws(Latency(mean_s=1.0, tail_share=0.1, tail_factor=20.0))
    assert set(values) == {1.0, 20.0}
    assert values.count(20.0) / COUNT == pytest.approx(0.1, abs=0.01)


def test_a_unit_lognormal_of_no_spread_is_one():
    assert unit_lognormal(Random(0), 0.0) == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "pareto"),
        ("mean_s", -1.0),
        ("spread", -0.1),
        ("tail_share", 1.5),
        ("tail_factor", 0.5),
    ],
)
def test_a_wrong_field_is_named(field, value):
    with pytest.raises(ConfigError) as caught:
        Latency(**{field: value})
    assert (caught.value.field, caught.value.value) == (f"latency.{field}", value)
