"""Weights on their way: hops that overlap bucket by bucket, and what engines stand still for."""

from dataclasses import replace

import pytest

from rollart.config.simulation import Constants
from rollart.hardware.gpus import gpu_named, link_from, link_named
from rollart.hardware.models import model_named
from rollart.sim.costs import LendCosts, WeightCosts, pipelined_s

SMALL, LARGE = model_named("Qwen3-8B"), model_named("Qwen3-32B")
CONSTANTS = Constants(push_gb_s=0.5, install_gb_s=8.0, bucket_gb=1.0)
SLOW = link_from("slow", {"gb_s": 1.0, "weights_gb_s": 0.25})
GB = SMALL.weight_bytes / 1e9


def bucket_by_bucket_s(buckets: int, first: float, second: float) -> float:
    """Return when the last of some buckets of 1 GB has made both hops, one after the other."""
    left, arrived = 0.0, 0.0
    for _ in range(buckets):
        left += 1 / first
        arrived = max(arrived, left) + 1 / second
    return arrived


@pytest.mark.parametrize("rates", [(0.5, 2.0), (2.0, 0.5), (1.0, 1.0)])
def test_two_hops_take_the_slower_and_one_bucket_of_the_other(rates: tuple[float, float]):
    expected = bucket_by_bucket_s(20, *rates)
    assert pipelined_s(20.0, rates, bucket_gb=1.0) == pytest.approx(expected, rel=1e-12)


def test_one_bucket_for_all_makes_the_hops_follow_each_other():
    assert pipelined_s(20.0, (0.5, 2.0), bucket_gb=20.0) == 40.0 + 10.0
    assert pipelined_s(20.0, (0.5, 2.0), bucket_gb=99.0) == 40.0 + 10.0


def test_engines_stand_still_for_the_last_bucket_and_the_load():
    weights = WeightCosts(model=SMALL, constants=CONSTANTS)
    assert weights.publish_s == weights.push_s == GB / 0.5
    assert weights.pull_s == GB / 2.2
    assert weights.update_s == pytest.approx(1 / 2.2 + GB / 8, rel=1e-12)


def test_a_pull_that_is_slower_than_the_push_is_waited_for():
    weights = WeightCosts(model=SMALL, constants=CONSTANTS, pull_link=SLOW)
    expected = 1 / 0.5 + GB / 0.25 - GB / 0.5 + GB / 8
    assert weights.exposed_s == pytest.approx(expected, rel=1e-12)


def test_a_link_slower_than_the_store_sets_the_pace_of_the_push():
    assert WeightCosts(model=SMALL, constants=CONSTANTS, push_link=SLOW).push_s == GB / 0.25
    fast = WeightCosts(model=SMALL, constants=CONSTANTS, push_link=link_named("rdma_400g"))
    assert fast.push_s == GB / 0.5


def test_a_store_without_a_limit_takes_what_the_link_brings():
    free = replace(CONSTANTS, push_gb_s=0.0)
    for name, rate in (("tcp_200g", 2.2), ("rdma_400g", 6.2)):
        link = link_named(name)
        weights = WeightCosts(model=SMALL, constants=free, push_link=link, pull_link=link)
        assert (weights.push_s, weights.pull_s) == (GB / rate, GB / rate)
        assert weights.update_s == pytest.approx(1 / rate + GB / 8, rel=1e-12)


def test_a_blocking_broadcast_stands_still_for_all_of_it():
    weights = WeightCosts(model=SMALL, constants=CONSTANTS)
    broadcast = replace(weights, blocking=True)
    assert broadcast.publish_s == 0.0
    assert broadcast.update_s == pytest.approx(weights.push_s + weights.exposed_s, rel=1e-12)


def lending(*, gpus: int) -> LendCosts:
    return LendCosts(model=LARGE, gpu=gpu_named("H800"), gpus=gpus, tp=4, constants=CONSTANTS)


def test_lending_pulls_and_loads_the_weights_bucket_by_bucket():
    costs = lending(gpus=32)
    size_gb = LARGE.weight_bytes / 1e9
    assert costs.recall_s == CONSTANTS.switch_s
    assert costs.lend_s == pytest.approx(CONSTANTS.switch_s + size_gb / 2.2 + 1 / 8, rel=1e-12)
    assert costs.held_gb == LARGE.parameters * 16 / 32


def test_what_training_keeps_goes_to_the_host_where_the_weights_do_not_fit_beside_it():
    costs = lending(gpus=8)
    assert costs.held_gb == 0.0
    moved_s = LARGE.parameters * 16 / 8 / (gpu_named("H800").pcie_gb_s / 2)
    assert costs.recall_s == pytest.approx(CONSTANTS.switch_s + moved_s, rel=1e-12)
