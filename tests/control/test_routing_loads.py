from hypothesis import given
from hypothesis import strategies as st

from rollart.control.routing import EngineLoad, PoolLoads

changes = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["up", "down", "leave", "ask"])), max_size=200
)


@given(changes)
def test_the_least_loaded_is_the_first_of_the_lowest(steps):
    pool, engines, order = PoolLoads(), {}, 0
    for name, verb in steps:
        engine = engines.get(name)
        if engine is None:
            engines[name] = EngineLoad(id=str(name), pool="p", order=order)
            order += 1
            pool.join(engines[name])
        elif verb == "up":
            engine.load += 1
        elif verb == "down" and engine.load > 0:
            engine.load -= 1
            pool.fell(engine)
        elif verb == "leave":
            pool.leave(engines.pop(name))
        assert len(pool) == len(engines)
        if engines:
            assert pool.least() is min(engines.values(), key=lambda each: (each.load, each.order))


def test_the_list_stays_as_long_as_the_pool_however_often_loads_change():
    pool = PoolLoads()
    engines = [EngineLoad(id=str(n), pool="p", order=n) for n in range(4)]
    for engine in engines:
        pool.join(engine)
    for number in range(5000):
        busy = engines[number % 4]
        busy.load += 1
        pool.least()
        busy.load -= 1
        pool.fell(busy)
    assert pool.least() is engines[0]
    assert len(pool._heap) <= 2 * 4 + 16
