"""A simulated run as rows."""

import pytest
from small_worlds import small_world

from rollart.sim.outcome import Collector, StepRows, outcome_of
from rollart.sim.simulator import Simulator


def test_rows_tell_of_each_step_what_the_outcome_tells_of_all():
    rows, collector = StepRows(), Collector()
    simulator = Simulator(small_world(), observers=[rows, collector])
    rows.attach(simulator.fleet)
    collector.attach(simulator.fleet)
    simulator.run()
    outcome = outcome_of(simulator, collector, skip=0)
    assert [row.step for row in rows.rows] == [1, 2, 3]
    for row, step in zip(rows.rows, outcome.steps, strict=True):
        assert row.ended_s == step.ended_s
        assert row.staleness == step.staleness
        assert row.wait_s + row.train_s == pytest.approx(row.step_s)
        assert row.tokens_per_s == pytest.approx(step.tokens / row.step_s)
        assert row.utilisation.keys() == {"compute", "bandwidth"}
        assert all(0 <= share <= 1 for share in row.utilisation.values())
    assert sum(row.step_s for row in rows.rows) / 3 == pytest.approx(outcome.step_s)
    for pool in ("compute", "bandwidth"):
        later = rows.rows[1:]
        busy_s = sum(row.utilisation[pool] * row.step_s for row in later)
        share = busy_s / sum(row.step_s for row in later)
        assert collector.utilisation(1)[pool] == pytest.approx(share)
    rows.metrics.ledger.check()
