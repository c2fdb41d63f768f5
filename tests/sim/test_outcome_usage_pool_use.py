"""How busy pools are over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_worlds import small_world

from rollart.sim.outcome import LIMIT, Bins, PoolUse
from rollart.sim.simulator import Simulator

intervals = st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e4)), max_size=30)


@given(intervals)
def test_no_busy_time_is_lost_and_bins_never_run_out(added):
    bins = Bins()
    for begin, length in added:
        bins.add(begin, begin + length)
    assert len(bins.busy_s) <= LIMIT
    assert sum(bins.busy_s) == pytest.approx(sum(length for _, length in added), abs=1e-6)


def test_an_interval_is_spread_over_the_bins_it_covers():
    bins = Bins(width_s=10.0, limit=4)
    bins.add(5.0, 25.0)
    assert bins.busy_s == [5.0, 10.0, 5.0]
    bins.add(70.0, 75.0)
    bins.reach(79.0)
    assert (bins.width_s, bins.busy_s) == (20.0, [15.0, 5.0, 0.0, 5.0])
    bins.reach(80.0)
    assert (bins.width_s, bins.busy_s) == (40.0, [20.0, 5.0, 0.0])


def test_the_use_of_every_pool_adds_up_to_the_engines_busy_time():
    use = PoolUse()
    simulator = Simulator(small_world(), observers=[use])
    use.attach(simulator.fleet)
    simulator.run()
    now = simulator.loop.now
    series = use.series(now)
    assert list(series) == ["compute", "bandwidth", "trainer"]
    busy_s = simulator.fleet.busy_s()
    for pool in ("compute", "bandwidth"):
        each = series[pool]
        assert each.workers == 2
        assert len(each.shares) <= LIMIT
        assert all(0 <= share <= 1 + 1e-9 for share in each.shares)
        last = now - (len(each.shares) - 1) * each.width_s
        busy = sum(each.shares[:-1]) * each.width_s + each.shares[-1] * last
        assert busy == pytest.approx(busy_s[pool], rel=1e-6)
    assert 0 < max(series["trainer"].shares) <= 1 + 1e-9
