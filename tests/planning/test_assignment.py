from itertools import product
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rollart.planning.assignment import assign, busiest


def test_tasks_go_where_they_are_cheap():
    options = {
        "reader": {"fast": {"fast": 1.0}, "wide": {"wide": 5.0}},
        "writer": {"fast": {"fast": 4.0}, "wide": {"wide": 2.0}},
    }
    found = assign(options, keep=2)
    assert found.tables[0] == {"reader": "fast", "writer": "wide"}
    assert 1.5 < found.bound_s <= 2.0


def test_one_pool_takes_everything():
    options = {"a": {"only": {"only": 1.0}}, "b": {"only": {"only": 2.0}}}
    found = assign(options, keep=3)
    assert (found.bound_s, found.tables) == (3.0, ({"a": "only", "b": "only"},))


def test_a_pool_may_have_two_resources():
    options = {"a": {"split": {"split/prefill": 1.0, "split/decode": 3.0}}}
    assert busiest(options, {"a": "split"}) == 3.0
    assert 2.5 < assign(options, keep=1).bound_s <= 3.0


@given(st.integers(0, 10_000))
def test_the_bound_is_never_above_the_best_whole_table(seed):
    random = Random(seed)
    tasks, pools = [f"t{n}" for n in range(random.randint(1, 4))], ["p", "q", "r"]
    options = {task: {pool: {pool: random.uniform(0.1, 10)} for pool in pools} for task in tasks}
    tables = [dict(zip(tasks, homes, strict=True)) for homes in product(pools, repeat=len(tasks))]
    best = min(busiest(options, table) for table in tables)
    found = assign(options, keep=4)
    assert found.bound_s <= best * (1 + 1e-9)
    assert [busiest(options, t) for t in found.tables] == sorted(
        busiest(options, t) for t in found.tables
    )
    assert busiest(options, found.tables[0]) <= best * 1.5
