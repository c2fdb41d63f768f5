from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.control.placement import Binding, Bindings, Needs, PoolCapacity, PoolRow
from rollart.errors import InvariantError, PlacementError

COMPUTE = PoolCapacity(
    name="compute", hardware="H800", units=4, memory_gb_per_unit=80.0, units_per_node=2
)
WIDE = PoolCapacity(name="wide", hardware="H20", units=4, memory_gb_per_unit=96.0, units_per_node=4)
HOSTS = PoolCapacity(name="hosts", hardware="CPU", units=2, memory_gb_per_unit=9.0)
POOLS = (COMPUTE, WIDE, HOSTS)


def bind(bindings: Bindings, worker: str, *preferred: str, units: int = 1, gb: float = 0.0) -> str:
    needs = Needs(units=units, memory_gb=gb)
    binding = bindings.bind(worker, preferred=preferred, needs=needs, now=1.0)
    bindings.check()
    return f"{binding.actual} on {binding.node}"


def rebind(bindings: Bindings, worker: str, *, needs: Needs, now: float) -> Binding:
    """Give a worker the best place there is now, as the driver does."""
    preferred = bindings.binding(worker).preferred
    bindings.release(worker, now=now)
    return bindings.bind(worker, preferred=preferred, needs=needs, now=now)


def refusal(bindings: Bindings, worker: str, *preferred: str, units: int = 1, gb: float = 0.0):
    with pytest.raises(PlacementError) as caught:
        bind(bindings, worker, *preferred, units=units, gb=gb)
    bindings.check()
    return str(caught.value)


def test_a_worker_gets_the_first_preferred_pool_with_room_and_both_are_recorded():
    bindings = Bindings(POOLS)
    first = bindings.bind("a", preferred=("wide", "compute"), needs=Needs(units=4), now=2.0)
    assert first == Binding(
        worker="a", preferred=("wide", "compute"), actual="wide", node="wide/0", since_s=2.0
    )
    assert first.is_at_home
    second = bindings.bind("b", preferred=("wide", "compute"), needs=Needs(units=2), now=3.0)
    assert (second.actual, second.is_at_home) == ("compute", False)
    assert bindings.binding("b") is second


def test_devices_stand_in_for_devices_and_cpus_for_cpus():
    bindings = Bindings(POOLS)
    assert bind(bindings, "a", "compute", units=4) == "wide on wide/0"
    assert "every pool that could take it is full: wide (4 of 4 units in use by a)" in refusal(
        bindings, "b", "compute", units=3
    )
    assert bind(bindings, "c", "hosts", units=2) == "hosts on hosts/0"
    assert "full: hosts (2 of 2 units in use by c)" in refusal(bindings, "d", "hosts")
    assert bind(bindings, "e", "hosts", "compute") == "compute on compute/0"
    assert bind(bindings, "f") == "compute on compute/0"


def test_the_units_of_a_worker_are_on_one_node():
    bindings = Bindings([COMPUTE])
    assert bind(bindings, "a", "compute") == "compute on compute/0"
    assert bind(bindings, "b", "compute", units=2) == "compute on compute/1"
    assert refusal(bindings, "c", "compute", units=2) == (
        "c needs 2 units on one node; every pool that could take it is full: "
        "compute (3 of 4 units in use by a, b)"
    )
    assert bind(bindings, "d", "compute") == "compute on compute/0"


def test_small_workers_fill_the_fullest_node_and_leave_whole_ones_to_large_workers():
    bindings = Bindings([WIDE])
    bindings.observe({"wide": {"left": 3, "right": 1}}, now=0.0)
    assert bind(bindings, "a", "wide") == "wide on right"
    assert bind(bindings, "b", "wide", units=3) == "wide on left"


def test_each_cause_has_its_message():
    bindings = Bindings(POOLS)
    assert refusal(bindings, "a", "h9") == (
        "a prefers pool 'h9': no such pool; there is compute, wide, hosts"
    )
    assert refusal(bindings, "a", "compute", units=2, gb=200.0) == (
        "a needs 2 units on one node with 200 GB together; no pool is large enough: "
        "compute offers 2 x 80 = 160 GB; wide offers 2 x 96 = 192 GB"
    )
    assert refusal(bindings, "a", "compute", units=5) == (
        "a needs 5 units on one node; no pool is large enough: "
        "compute has 2 units on a node; wide has 4 units on a node"
    )
    bindings.observe({"hosts": 1}, now=0.0)
    assert refusal(bindings, "a", "compute") == (
        "a needs 1 unit on one node; no node is alive of the pools that are large enough: "
        "compute, wide"
    )
    assert refusal(Bindings([]), "a") == (
        "a needs 1 unit on one node; no pool is large enough: there is none"
    )
    with pytest.raises(PlacementError, match="the cluster reports pool 'x': no such pool"):
        bindings.observe({"x": 1}, now=0.0)


def test_a_full_pool_names_a_few_of_its_holders():
    many = PoolCapacity(name="many", hardware="H20", units=9, memory_gb_per_unit=96.0)
    bindings = Bindings([many])
    for number in range(9):
        bind(bindings, f"w{number}", "many")
    assert "in use by w0, w1, w2, w3, w4, w5 and 3 more)" in refusal(bindings, "x", "many")


def test_fewer_units_than_a_worker_needs_are_no_room_though_nobody_holds_them():
    bindings = Bindings([WIDE])
    bindings.observe({"wide": {"a": 2, "b": 1, "c": 0}}, now=0.0)
    assert refusal(bindings, "x", "wide", units=4).endswith("full: wide (0 of 3 units in use)")


def test_a_pool_that_is_too_small_is_passed_by():
    assert bind(Bindings(POOLS), "a", "compute", gb=90.0) == "wide on wide/0"


def test_a_pool_with_a_role_stands_in_only_for_one_with_that_role():
    train, serve = replace(WIDE, name="train", units=1, role="train"), replace(WIDE, role="rollout")
    bindings = Bindings([train, serve, COMPUTE])
    assert bind(bindings, "a", "train") == "train on train/0"
    assert bind(bindings, "b", "train") == "compute on compute/0"
    bindings = Bindings([train, serve])
    bind(bindings, "a", "train")
    assert refusal(bindings, "b", "train") == (
        "b needs 1 unit on one node; every pool that could take it is full: "
        "train (1 of 1 units in use by a)"
    )
    alike = Bindings([replace(train, role="rollout"), serve])
    assert bind(alike, "a", "train") == "train on train/0"
    assert bind(alike, "b", "train") == "wide on wide/0"


def test_a_worker_whose_node_is_gone_is_lost_and_goes_home_when_it_is_back():
    bindings = Bindings(POOLS)
    both = {"compute": {"n1": 2, "n2": 2}, "wide": {"n3": 4}}
    bindings.observe(both, now=0.0)
    assert bind(bindings, "a", "compute", units=2) == "compute on n1"
    assert bind(bindings, "b", "compute", units=2) == "compute on n2"
    bindings.observe({"compute": {"n2": 2}, "wide": {"n3": 4}}, now=5.0)
    bindings.check()
    assert bindings.lost() == ("a",)
    assert (bindings.better("a"), bindings.better("b")) == (None, None)
    moved = rebind(bindings, "a", needs=Needs(units=2), now=6.0)
    assert (moved.actual, moved.node, moved.since_s) == ("wide", "n3", 6.0)
    assert (bindings.lost(), bindings.better("a")) == ((), None)
    bindings.observe(both, now=8.0)
    assert bindings.better("a") == "compute"
    back = rebind(bindings, "a", needs=Needs(units=2), now=9.0)
    assert (back.actual, back.node) == ("compute", "n1")
    bindings.check()
    assert [
        (each.worker, each.actual, each.since_s, each.until_s) for each in bindings.records()
    ] == [
        ("a", "compute", 1.0, 5.0),
        ("a", "wide", 6.0, 9.0),
        ("b", "compute", 1.0, None),
        ("a", "compute", 9.0, None),
    ]


def test_a_lost_worker_stays_lost_until_there_is_room_or_it_is_released():
    bindings = Bindings([WIDE])
    bind(bindings, "a", "wide", units=3)
    bind(bindings, "b", "wide")
    bindings.observe({"wide": 3}, now=2.0)
    assert bindings.lost() == ("b",)
    assert "full: wide (3 of 3 units in use by a)" in refusal(bindings, "c", "wide")
    assert bindings.lost() == ("b",)
    bindings.observe({}, now=4.0)
    assert bindings.lost() == ("a", "b")
    bindings.observe({"wide": 4}, now=5.0)
    assert bindings.lost() == ("a", "b")
    assert bindings.better("b") == "wide"
    bindings.release("a", now=6.0)
    assert rebind(bindings, "b", needs=Needs(), now=6.0).actual == "wide"
    assert bindings.lost() == ()
    bindings.check()


def test_the_table_shows_pools_their_use_and_who_is_lost():
    bindings = Bindings(POOLS)
    bind(bindings, "a", "compute", units=2)
    bind(bindings, "b", "wide")
    bindings.observe({"compute": 4, "hosts": 9}, now=2.0)
    assert bindings.table() == (
        PoolRow(
            name="compute",
            hardware="H800",
            units=4,
            alive=4,
            used=2,
            bindings=(bindings.binding("a"),),
            lost=(),
        ),
        PoolRow(name="wide", hardware="H20", units=4, alive=0, used=0, bindings=(), lost=("b",)),
        PoolRow(name="hosts", hardware="CPU", units=2, alive=2, used=0, bindings=(), lost=()),
    )


def test_pools_with_the_same_resource_share_a_nodes_units():
    train, serve = (
        PoolCapacity(name=name, hardware="H800", units=2, memory_gb_per_unit=80.0)
        for name in ("train", "serve")
    )
    bindings = Bindings([train, serve])
    bindings.observe({"train": {"n": 3}, "serve": {"n": 3}}, now=0.0)
    assert bind(bindings, "trainer", "train", units=2) == "train on n"
    assert bind(bindings, "engine", "serve") == "serve on n"
    assert "full: serve (1 of 2 units in use by trainer, engine)" in refusal(
        bindings, "more", "serve"
    )


def test_a_pool_gives_no_more_than_was_declared():
    bindings = Bindings([HOSTS])
    bindings.observe({"hosts": {"n": 64}}, now=0.0)
    bind(bindings, "a", "hosts", units=2)
    assert "full: hosts (2 of 2 units" in refusal(bindings, "b", "hosts")
    assert bind(bindings, "c", "hosts", units=0, gb=50.0) == "hosts on n"


def test_workers_without_units_are_spread_over_the_nodes():
    bindings = Bindings([HOSTS])
    bindings.observe({}, now=0.0)
    assert "no node is alive" in refusal(bindings, "a", "hosts", units=0)
    bindings.observe({"hosts": {"n": 1, "m": 1}}, now=0.0)
    assert bind(bindings, "a", "hosts", units=0) == "hosts on n"
    assert bind(bindings, "b", "hosts", units=0) == "hosts on m"
    assert bind(bindings, "c", "hosts", units=0) == "hosts on n"
    bindings.observe({"hosts": {"n": 1}}, now=1.0)
    bindings.observe({"hosts": {"n": 1, "m": 1}}, now=2.0)
    assert rebind(bindings, "b", needs=Needs(units=0), now=2.0).node == "m"


def test_a_worker_that_did_not_get_away_is_bound_where_it_was():
    bindings = Bindings(POOLS)
    bindings.observe({"compute": {"p": 2}, "wide": {"q": 2}}, now=0.0)
    bind(bindings, "a", "compute", units=2)
    before = bindings.binding("a")
    bindings.release("a", now=1.0)
    bind(bindings, "a", "wide", units=2)
    bindings.place(before, needs=Needs(units=2), now=2.0)
    assert bindings.binding("a") == replace(before, since_s=2.0)
    bindings.check()
    bindings.place(replace(before, worker="b"), needs=Needs(units=0), now=3.0)
    assert bindings.lost() == ()
    bindings.place(replace(before, worker="c"), needs=Needs(), now=3.0)
    bindings.place(replace(before, worker="d", node="gone"), needs=Needs(units=0), now=3.0)
    assert bindings.lost() == ("c", "d")
    bindings.check()


def test_a_worker_is_bound_once():
    bindings = Bindings(POOLS)
    bind(bindings, "a", "wide")
    with pytest.raises(InvariantError, match="a is bound already"):
        bind(bindings, "a", "wide")


NAMES = st.lists(st.sampled_from(["compute", "wide", "hosts"]), unique=True, max_size=3)
NODES = st.dictionaries(st.sampled_from("pqrs"), st.integers(0, 4), max_size=4)
ALIVE = st.dictionaries(
    st.sampled_from(["compute", "wide", "hosts"]), st.one_of(st.integers(0, 6), NODES), max_size=3
)
NEEDS = st.builds(Needs, units=st.integers(0, 4), memory_gb=st.sampled_from([0.0, 50.0, 150.0]))
WORKERS = st.sampled_from("abcdef")
STEPS = st.one_of(
    st.tuples(st.just("bind"), WORKERS, NAMES, NEEDS),
    st.tuples(st.just("observe"), ALIVE),
    st.tuples(st.just("release"), WORKERS),
    st.tuples(st.just("rebind"), WORKERS, NEEDS),
    st.tuples(st.just("place"), WORKERS, WORKERS, st.integers(0, 2)),
)


@given(st.lists(STEPS, max_size=60))
def test_whatever_comes_and_goes_no_node_holds_more_than_it_has(steps):
    bindings, known = Bindings(POOLS), {}
    for now, (verb, *rest) in enumerate(steps):
        try:
            match verb:
                case "observe":
                    bindings.observe(rest[0], now=now)
                case "bind" if rest[0] not in known:
                    worker, preferred, needs = rest
                    bindings.bind(worker, preferred=tuple(preferred), needs=needs, now=now)
                    known[worker] = tuple(preferred)
                case "release" if rest[0] in known:
                    bindings.release(rest[0], now=now)
                    del known[rest[0]]
                case "rebind" if rest[0] in known:
                    worker, needs = rest
                    del known[worker]
                    known[worker] = rebind(bindings, worker, needs=needs, now=now).preferred
                    assert worker not in bindings.lost()
                case "place" if rest[1] in known:
                    worker, other, units = rest
                    beside = replace(bindings.binding(other), worker=worker)
                    bindings.place(beside, needs=Needs(units=units), now=now)
                    known[worker] = beside.preferred
        except PlacementError:
            pass
        bindings.check()
        rows = bindings.table()
        assert all(row.used <= row.units for row in rows)
        shown = [each.worker for row in rows for each in row.bindings]
        assert sorted([*shown, *bindings.lost()]) == sorted(known)
        current = [each for each in bindings.records() if each.until_s is None]
        assert {each.worker: each.preferred for each in current} == {
            worker: known[worker] for worker in shown
        }
