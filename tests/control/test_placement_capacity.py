from rollart.control.placement import Needs, PoolCapacity

POOL = PoolCapacity(
    name="wide", hardware="H20", units=10, memory_gb_per_unit=96.0, units_per_node=4
)


def test_units_without_names_are_nodes_of_the_declared_size():
    assert POOL.by_node(10) == {"wide/0": 4, "wide/1": 4, "wide/2": 2}
    assert POOL.by_node(0) == {}
    assert POOL.by_node({"a": 3, "b": 0}) == {"a": 3}
    anywhere = PoolCapacity(name="all", hardware="CPU", units=7, memory_gb_per_unit=9.0)
    assert anywhere.by_node(7) == {"all/0": 7}


def test_a_worker_fits_if_one_node_has_its_units_and_they_have_its_memory():
    fits = [
        POOL.fits(Needs(units=units, memory_gb=gb))
        for units, gb in ((4, 384.0), (4, 385.0), (5, 0.0), (0, 1e9))
    ]
    assert fits == [True, False, False, True]


def test_needs_and_offers_are_said_in_words():
    assert str(Needs(units=1)) == "1 unit on one node"
    assert str(Needs(units=2, memory_gb=1500.0)) == "2 units on one node with 1,500 GB together"
    assert POOL.offer(Needs(units=8)) == "wide has 4 units on a node"
    assert POOL.offer(Needs(units=2, memory_gb=200.0)) == "wide offers 2 x 96 = 192 GB"


def test_pools_count_units_by_resource_or_else_by_class():
    named = PoolCapacity(name="n", hardware="CPU", units=1, memory_gb_per_unit=1.0, resource="slow")
    assert (POOL.key("a"), named.key("a")) == (("H20", "a"), ("slow", "a"))
    assert (POOL.is_cpu, named.is_cpu) == (False, True)
