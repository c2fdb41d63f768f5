from dataclasses import dataclass, field, replace

import pytest

from rollart.config import Config, TaskOptions
from rollart.config.places import (
    WorkerPlace,
    alive,
    capacities,
    engine_places,
    environment_place,
    idle_units,
    trainer_place,
    unused_units,
    uses_of,
)
from rollart.config.pools import AffinityOptions, PoolOptions
from rollart.control.placement import Needs, PoolCapacity
from rollart.errors import ConfigError
from rollart.training.options import TrainingOptions

TASKS = {"lake": TaskOptions(env="frozen_lake")}
COMPUTE = PoolOptions(hardware="H800", count=2)
WIDE = PoolOptions(hardware="H20", count=4, tp=2)
HOSTS = PoolOptions(hardware="CPU", count=8)


def make(**pools: PoolOptions) -> Config:
    return Config(tasks=TASKS, pools=pools)


def test_three_kinds_of_hardware_need_no_more_than_a_class_and_a_count():
    config = make(compute=COMPUTE, wide=WIDE, hosts=HOSTS)
    assert uses_of(config) == {"compute": "train", "wide": "rollout", "hosts": "environments"}
    assert [each.name for each in capacities(config)] == ["compute", "wide", "hosts"]
    place = WorkerPlace(preferred=("wide", "compute"), needs=Needs(units=2, memory_gb=16.0))
    assert engine_places(config, weight_bytes=16e9) == {"wide-0": place, "wide-1": place}
    assert trainer_place(config) == WorkerPlace(preferred=("compute", "wide"), needs=Needs())
    assert environment_place(config) == WorkerPlace(
        preferred=("hosts", "compute", "wide"), needs=Needs(units=0)
    )


def test_without_pools_the_replicas_are_local():
    config = Config(tasks=TASKS)
    assert capacities(config) == (
        PoolCapacity(name="local", hardware="CPU", units=2, memory_gb_per_unit=float("inf")),
    )
    assert uses_of(config) == {}
    assert engine_places(config) == {"torch-0": WorkerPlace(preferred=("local",), needs=Needs())}
    assert environment_place(config) == WorkerPlace(preferred=("local",), needs=Needs(units=0))


@dataclass(frozen=True)
class Machine:
    id: str
    resources: dict[str, float]
    labels: dict[str, str] = field(default_factory=dict)


def test_what_is_alive_follows_from_the_nodes_resources():
    nodes = [Machine("n1", {"H20": 2.0, "CPU": 4.0}), Machine("n2", {"CPU": 3.0})]
    assert alive(make(wide=WIDE, hosts=HOSTS), nodes) == {
        "wide": {"n1": 2, "n2": 0},
        "hosts": {"n1": 4, "n2": 3},
    }
    assert alive(Config(tasks=TASKS), nodes) == {"local": {"n1": 2, "n2": 2}}


def test_engines_get_what_training_leaves_of_an_only_pool():
    config = make(one=PoolOptions(hardware="CPU", count=3))
    assert uses_of(config) == {"one": "train"}
    assert list(engine_places(config)) == ["one-0", "one-1"]


@pytest.mark.parametrize(
    "pool",
    [PoolOptions(hardware="CPU", count=1), PoolOptions(hardware="H20", count=8, role="train")],
)
def test_no_room_for_an_engine_is_one_message(pool):
    with pytest.raises(ConfigError, match="no engine has room beside training"):
        engine_places(make(one=pool))


def test_units_that_train_nothing_are_counted_where_no_engine_takes_them():
    trains = PoolOptions(hardware="H800", count=8, role="train")
    config = make(trains=trains, wide=WIDE)
    assert idle_units(config) == {"trains": 7}
    assert idle_units(replace(config, training=TrainingOptions(ranks=8))) == {}
    assert idle_units(make(one=PoolOptions(hardware="CPU", count=3))) == {}


def test_environments_may_stay_where_the_run_is_started():
    config = Config(
        tasks=TASKS, pools={"wide": WIDE}, affinity=AffinityOptions(environments="local")
    )
    assert environment_place(config) is None


def test_units_that_the_engine_does_not_use_are_named():
    ranks = PoolOptions(hardware="H800", count=1)
    assert unused_units(make(wide=WIDE, ranks=ranks)) == [
        "pools.wide.tp = 2: an engine of it holds so many units of one node, but torch is one "
        "process and computes on the first of them only"
    ]
    assert unused_units(make(narrow=PoolOptions(hardware="H20", count=4), ranks=ranks)) == []
    assert unused_units(make()) == []
