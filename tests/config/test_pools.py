import pytest

from rollart.config.pools import PoolOptions
from rollart.control.placement import PoolCapacity
from rollart.errors import ConfigError

H20 = PoolOptions(hardware="H20", count=16)
CPUS = PoolOptions(hardware="CPU", count=4)


def test_capacity_is_the_tables_unless_the_pool_says_more():
    assert H20.capacity("wide") == PoolCapacity(
        name="wide", hardware="H20", units=16, memory_gb_per_unit=96.0, units_per_node=8
    )
    small = PoolOptions(hardware="CPU", count=2, memory_gb=1.5, resource="slow")
    assert small.capacity("slow") == PoolCapacity(
        name="slow",
        hardware="CPU",
        units=2,
        memory_gb_per_unit=1.5,
        units_per_node=112,
        resource="slow",
    )


@pytest.mark.parametrize(
    ("pool", "units", "request_"),
    [
        (H20, 2, {"H20": 2.0}),
        (PoolOptions(hardware="H20", count=1, cpus=4), 1, {"H20": 1.0, "CPU": 4}),
        (H20, 0, {}),
        (CPUS, 1, {"CPU": 1.0}),
        (PoolOptions(hardware="CPU", count=1, cpus=2), 1, {"CPU": 2}),
        (PoolOptions(hardware="CPU", count=1, resource="slow"), 1, {"slow": 1.0}),
    ],
)
def test_a_worker_asks_ray_for_its_units_and_its_cpus(pool, units, request_):
    assert pool.request(units=units) == request_


def test_a_nodes_units_are_what_it_has_of_the_resource_if_its_labels_match():
    has = {"H20": 8.0, "CPU": 3.0}
    zoned = PoolOptions(hardware="H20", count=8, labels={"zone": "a"})
    assert H20.units_on(has, {}) == 8
    assert PoolOptions(hardware="H800", count=1).units_on(has, {}) == 0
    assert CPUS.units_on(has, {}) == 3
    halves = PoolOptions(hardware="CPU", count=6, cpus=0.5)
    assert halves.units_on(has, {}) == 6
    assert zoned.units_on(has, {"zone": "a", "rack": "1"}) == 8
    assert zoned.units_on(has, {"zone": "b"}) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hardware": "H900"}, "pools.class = 'H900': not known; nearest: H"),
        ({"memory_gb": -1.0}, "pools.memory_gb = -1.0: must be at least 0"),
        ({"cpus": -1.0}, "pools.cpus = -1.0: must be at least 0"),
        ({"resource": "GPU"}, "pools.resource = 'GPU': every GPU node has it"),
    ],
)
def test_a_wrong_value_is_named(options, message):
    with pytest.raises(ConfigError) as caught:
        PoolOptions(**{"hardware": "H20", "count": 1, **options})
    assert str(caught.value).startswith(message)
