from dataclasses import replace

import pytest

from rollart.sim.paper import setup
from rollart.sim.paper.mechanisms import weight_rows
from rollart.sim.paper.rows import Row, Runs
from rollart.sim.paper.schedules import affinity_rows
from rollart.sim.paper.setup import SIZES, Setup


def row(simulated, low=1.2, high=1.4):
    return Row(name="a ratio", paper_low=low, paper_high=high, simulated=simulated)


@pytest.mark.parametrize(
    ("simulated", "error"), [(1.2, 0.0), (1.3, 0.0), (1.4, 0.0), (0.6, 0.5), (1.54, 0.1)]
)
def test_an_error_is_how_far_a_figure_lies_outside_its_band(simulated, error):
    assert row(simulated).error == pytest.approx(error)


def test_a_row_is_encoded_with_the_keys_of_the_report():
    assert row(1.54).encoded == {
        "name": "a ratio",
        "paper_low": 1.2,
        "paper_high": 1.4,
        "simulated": 1.54,
        "kind": "predicted",
        "measure": "ratio",
        "error": 0.1,
    }


def test_weights_are_three_times_for_each_size_and_all_fitted():
    rows = list(weight_rows())
    assert len(rows) == 3 * len(SIZES)
    assert {(each.kind, each.measure) for each in rows} == {("fitted", "seconds")}
    push, pull, exposed = (rows[start::3] for start in range(3))
    assert max(each.error for each in push) < 0.15
    assert max(each.error for each in pull) < 0.25
    assert [round(each.simulated, 1) for each in exposed] == [2.7, 4.6, 9.6]


def test_the_testbed_is_the_papers():
    ours, theirs = setup.testbed("14B", "rollart"), setup.testbed("14B", "areal")
    assert (ours.train, ours.compute, ours.bandwidth) == (32, 64, 32)
    assert (theirs.train, theirs.compute, theirs.bandwidth) == (32, 96, 0)
    assert setup.tasks("32B")[0].name == "swe"
    assert "swe" not in [task.name for task in setup.tasks("14B")]


def small(**changes):
    return replace(Setup(groups=4, compute=8, train=8, steps=3), **changes)


def test_a_setup_is_simulated_once_and_gives_the_same_figures_again():
    told = []
    runs = Runs(told.append, steps=3, seeds=1)
    first = runs.outcomes(small())
    assert runs.outcomes(small()) is first
    assert Runs(told.append, steps=3, seeds=1).outcomes(small()) == first
    assert runs.throughput(small()) == first[0].tokens_per_s
    assert runs.step_s(small()) == first[0].step_s
    assert told == ["Qwen3-8B rollart on 16 GPUs"] * 2


def test_affinity_rows_name_the_clusters_of_equal_cost():
    class Counting(Runs):
        def throughput(self, run):
            return 2.0 if run.compute and run.bandwidth else 1.0

    rows = list(affinity_rows(Counting(print, steps=3, seeds=1)))
    assert [each.simulated for each in rows] == [2.0] * 6
    assert rows[0].name == "affinity, 64 H800 + 24 H20 over 208 H20, 8B"
    assert [each.kind for each in rows] == ["fitted"] * 2 + ["predicted"] * 4
