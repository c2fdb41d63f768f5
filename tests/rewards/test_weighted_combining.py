"""Weights, parts and failures of several functions become one reward, or one failure."""

import pytest

from rollart.errors import ScoreError
from rollart.rewards.weighted import combine
from rollart.types import Reward


def test_the_value_is_the_weighted_sum_and_the_parts_keep_their_names():
    outcomes = {
        "right": Reward(value=1.0, parts={"exact": 1.0}),
        "short": Reward(value=-0.5),
        "style": Reward(value=0.25, parts={"bullets": 1.0, "commas": 0.0}),
    }
    assert combine({"right": 1.0, "short": 0.2, "style": 2.0}, outcomes) == Reward(
        value=1.4,
        parts={
            "right": 1.0,
            "right/exact": 1.0,
            "short": -0.5,
            "style": 0.25,
            "style/bullets": 1.0,
            "style/commas": 0.0,
        },
    )


def test_a_weight_of_zero_only_shows_the_part():
    outcomes = {"a": Reward(value=3.0), "b": Reward(value=1.0)}
    assert combine({"a": 0.0, "b": 1.0}, outcomes) == Reward(value=1.0, parts={"a": 3.0, "b": 1.0})


@pytest.mark.parametrize("is_final", [True, False])
def test_one_failed_function_fails_the_whole_even_at_weight_zero(is_final: bool):
    outcomes = {"a": ScoreError("timed out", is_final=is_final), "b": Reward(value=1.0)}
    with pytest.raises(ScoreError, match=r"^a: timed out$") as caught:
        combine({"a": 0.0, "b": 1.0}, outcomes)
    assert caught.value.is_final is is_final


def test_every_failure_is_told_and_one_final_one_is_enough():
    outcomes = {"a": ScoreError("late"), "b": ScoreError("no key", is_final=True)}
    with pytest.raises(ScoreError, match=r"^a: late; b: no key$") as caught:
        combine({"a": 1.0, "b": 1.0}, outcomes)
    assert caught.value.is_final


def test_names_must_agree():
    with pytest.raises(ScoreError, match="weights for a, rewards of b: each function needs both"):
        combine({"a": 1.0}, {"b": Reward(value=1.0)})
    with pytest.raises(ScoreError, match="weights for none, rewards of none"):
        combine({}, {})


@pytest.mark.parametrize("weights", [{"a": 1e308, "b": 1.0}, {"a": 1e307, "b": 1e307}])
def test_a_sum_that_overflows_is_no_reward(weights: dict[str, float]):
    outcomes = {"a": Reward(value=10.0), "b": Reward(value=10.0)}
    with pytest.raises(ScoreError, match=r"the sum .* is not finite"):
        combine(weights, outcomes)
