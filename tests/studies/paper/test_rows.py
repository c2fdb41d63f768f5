from dataclasses import replace

import pytest

from studies.beyond import divided
from studies.paper import setup
from studies.paper.mechanisms import weight_rows
from studies.paper.report import FULL, QUICK, compare, run
from studies.paper.rows import PaperExtent, PaperRow, SetupCollector, outcome_of, simulate_setups
from studies.paper.schedules import MODE_NAMES, affinity_rows, orderings, scaling_over_sync
from studies.paper.setup import SIZES, Setup


def row(simulated, low=1.2, high=1.4):
    return PaperRow(name="a ratio", paper_low=low, paper_high=high, simulated=simulated)


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
        "follows": False,
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
    return replace(Setup(groups=4, compute=8, train=8), **changes)


TINY = PaperExtent(steps=3, seeds=2, rollouts=3)


class Given(SetupCollector):
    """Runs whose every figure is a function of the set-up."""

    def __init__(self, figure):
        super().__init__()
        self.throughput = self.step_s = self.rollout_s = self.reward_use = figure


def test_set_ups_are_simulated_once_with_every_seed_and_figures_are_means():
    told: list[str] = []
    rollout = small(steps=1, mode="sync_plus")
    runs = simulate_setups([small(), rollout], TINY, jobs=1, progress=told.append)
    assert [len(outcomes) for outcomes in runs.known.values()] == [2, 3]
    own = [outcome_of(replace(small(), steps=3, seed=seed)) for seed in (0, 1)]
    assert list(runs.known[small()]) == own
    assert runs.throughput(small()) == sum(each.tokens_per_s for each in own) / 2
    assert runs.step_s(small()) == sum(each.step_s for each in own) / 2
    assert runs.rollout_s(rollout) > 0
    assert 0 < runs.reward_use(rollout) <= 1
    assert told[0] == "0 of 5 runs, now Qwen3-8B rollart on 16 GPUs, seed 0"


def test_two_processes_give_what_one_does():
    told: list[str] = []
    extent = PaperExtent(steps=2, seeds=2, rollouts=1)
    one, two = (simulate_setups([small()], extent, jobs=n, progress=told.append) for n in (1, 2))
    assert one.known == two.known
    assert told[-1].startswith("2 of 2 runs, last Qwen3-8B rollart on 16 GPUs, seed ")


def test_affinity_rows_name_the_clusters_of_equal_cost():
    runs = Given(lambda setup: 2.0 if setup.compute and setup.bandwidth else 1.0)
    rows = list(affinity_rows(runs))
    assert [each.simulated for each in rows] == [2.0] * 6
    assert rows[0].name == "affinity, 64 H800 + 24 H20 over 208 H20, 8B"
    assert [each.kind for each in rows] == ["fitted"] * 2 + ["predicted"] * 4


def test_the_report_has_every_figure_of_the_paper_once():
    report = compare(SetupCollector())
    rows = report["rows"]
    assert isinstance(rows, list)
    assert len({row["name"] for row in rows}) == len(rows) == 66
    assert (report["predicted"], report["fitted"], report["independent"]) == (43, 23, 37)
    following = [row["name"] for row in rows if row["follows"]]
    assert [name for name in following if name.startswith("throughput")] == [
        f"throughput, rollart over sync, {size}" for size in SIZES
    ]
    assert sum(name.startswith("step time") for name in following) == 4


def test_every_set_up_has_at_least_five_seeds():
    asked = SetupCollector()
    compare(asked)
    assert min(len(FULL.seeded(setup)) for setup in asked.setups) == 5
    assert {len(QUICK.seeded(setup)) for setup in asked.setups} == {1}


def test_orderings_say_for_each_size_whether_the_schedules_are_as_published():
    rates = dict(zip(MODE_NAMES, (1.0, 2.0, 3.0, 3.0, 4.0), strict=True))
    assert orderings(Given(lambda setup: rates[setup.mode])) == dict.fromkeys(SIZES, True)
    rates["areal"] = 2.9
    assert orderings(Given(lambda setup: rates[setup.mode])) == dict.fromkeys(SIZES, False)
    assert orderings(SetupCollector()) == dict.fromkeys(SIZES, False)


def test_scaling_over_sync_is_told_by_gpus():
    runs = Given(lambda setup: 1.0 if setup.mode == "sync" else 3.0)
    assert scaling_over_sync(runs) == {"64": 3.0, "128": 3.0}


def test_the_schedules_are_ordered_on_an_eighth_of_the_testbed_too():
    rates = []
    for mode in MODE_NAMES:
        eighth = divided(setup.testbed("8B", mode), part=8)
        eighth = replace(eighth, environments=0) if mode == "sync" else eighth
        extra = None if mode == "rollart" else 0
        made = replace(eighth, steps=6, extra_groups=extra)
        rates.append(sum(outcome_of(replace(made, seed=seed)).tokens_per_s for seed in (0, 1)))
    assert rates == sorted(rates)


def test_the_report_is_made_of_what_was_simulated(monkeypatch):
    def pretend(setups, extent, *, jobs, progress):
        del progress
        assert (len(setups), extent, jobs) == (71, QUICK, 1)
        return SetupCollector()

    monkeypatch.setattr("studies.paper.report.simulate_setups", pretend)
    assert run(quick=True, jobs=1, progress=print) == compare(SetupCollector())
