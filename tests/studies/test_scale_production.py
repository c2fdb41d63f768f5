"""The production cluster's shape: its division, and tails as the paper tells them."""

import pytest

from rollart.sim.loop import Loop
from studies.scale import BOUNDED, SIZES, ScaleTrial, tails


@pytest.mark.parametrize(("shape", "tp", "attempts"), [("production", 1, 4), ("long", 2, 2)])
@pytest.mark.parametrize("gpus", SIZES)
def test_a_sixth_of_the_gpus_trains_and_the_rest_generates(gpus, shape, tp, attempts):
    world = ScaleTrial(shape=shape, gpus=gpus, steps=1).world(0)
    generating = tp * len(world.make_engines(Loop()))
    assert generating / (gpus - generating) == pytest.approx(5, rel=0.1)
    assert world.rules.batching.groups_per_step * 8 == attempts * gpus


def test_the_tails_are_those_of_the_production_cluster():
    measured = tails(ScaleTrial(shape="production", gpus=BOUNDED, steps=1))
    assert (measured["fewest_turns"], measured["most_turns"]) == (1, 48)
    assert measured["most_turns_over_mean"] > 40  # pyright: ignore[reportOperatorIssue]
    assert 5 <= measured["longest_response_over_mean"] <= 9  # pyright: ignore[reportOperatorIssue]
