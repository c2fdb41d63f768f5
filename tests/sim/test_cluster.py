"""Pools cut into engines, and durations that follow from hardware."""

import pytest
from small_worlds import small_cluster

from rollart.errors import ConfigError
from rollart.hardware.gpus import gpu_named
from rollart.hardware.models import model_named
from rollart.sim.cluster import ClusterDurations, Disaggregation, RolloutPool
from rollart.sim.disaggregated import DisaggregatedEngine
from rollart.sim.loop import Loop
from rollart.types import EngineId, Version

H800, H20 = gpu_named("H800"), gpu_named("H20")


def test_pools_are_cut_into_engines_and_the_rest_stays_idle():
    cluster = small_cluster(
        rollout=(
            RolloutPool(name="fast", gpu=H800, gpus=7, tp=2),
            RolloutPool(name="wide", gpu=H20, gpus=2, tp=1),
        )
    )
    members = cluster.make_engines(Loop())
    assert [(m.engine.id, m.pool, m.lent) for m in members] == [
        ("fast-0", "fast", False),
        ("fast-1", "fast", False),
        ("fast-2", "fast", False),
        ("wide-0", "wide", False),
        ("wide-1", "wide", False),
    ]


def test_training_hardware_lends_engines():
    members = small_cluster(lend_tp=2).make_engines(Loop())
    lent = [m.engine.id for m in members if m.lent]
    assert lent == ["training-0", "training-1"]


def test_durations_of_lending_are_those_of_the_training_hardware_and_the_link():
    cluster = small_cluster(lend_tp=1, pull_link="rdma_400g")
    costs = cluster.lending
    assert (costs.gpus, costs.tp, costs.pull_link.name) == (4, 1, "rdma_400g")
    durations = ClusterDurations(cluster)
    assert (durations.lend_s(), durations.recall_s()) == (costs.lend_s, costs.recall_s)


def test_weights_cross_the_links_the_cluster_names():
    weights = small_cluster(push_link="tcp_10g", pull_link="rdma_400g").weights
    assert (weights.push_link.name, weights.pull_link.name) == ("tcp_10g", "rdma_400g")


def test_units_of_prefill_and_decode_engines():
    split = Disaggregation(prefill=1, decode=3, decode_gpu=H20)
    pool = RolloutPool(name="split", gpu=H800, gpus=8, tp=1, disaggregation=split)
    members = small_cluster(rollout=(pool,)).make_engines(Loop())
    assert [member.engine.id for member in members] == ["split-0", "split-1"]
    unit = members[0].engine
    assert isinstance(unit, DisaggregatedEngine)
    assert [part.id for part in unit.parts] == [
        "split-0/prefill-0",
        "split-0/decode-0",
        "split-0/decode-1",
        "split-0/decode-2",
    ]


def test_durations_follow_from_the_hardware():
    few, many = (ClusterDurations(small_cluster(train_gpus=n)) for n in (4, 8))
    variable = [
        d.train_s(1_000_000, version=Version(0)) - d.train_s(0, version=Version(0))
        for d in (few, many)
    ]
    assert variable[0] == pytest.approx(2 * variable[1])
    assert few.publish_s(Version(1)) > few.update_s(Version(1), engine=EngineId("x")) > 0
    blocking = ClusterDurations(small_cluster(blocking_weights=True))
    assert blocking.publish_s(Version(1)) == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RolloutPool(name="p", gpu=H800, gpus=8, tp=9), "pools.p.tp = 9: must be from 1"),
        (lambda: RolloutPool(name="p", gpu=H800, gpus=1, tp=2), "pools.p.gpus = 1: must hold"),
        (lambda: Disaggregation(prefill=0, decode=1), "pools.prefill = 0"),
        (lambda: small_cluster(train_gpus=0), "pools.training.gpus = 0"),
        (lambda: gpu_named("H900"), "gpu = 'H900': not known; nearest: H"),
        (
            lambda: small_cluster(model=model_named("Qwen3-235B-A22B")).make_engines(Loop()),
            "pools.tp = 1: Qwen3-235B-A22B needs 470 GB for its weights, 1 × H800 has 80 GB",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)
