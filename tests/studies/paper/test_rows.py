from dataclasses import replace
from statistics import stdev

import pytest

from studies.beyond import divided
from studies.paper import setup
from studies.paper.mechanisms import weight_rows
from studies.paper.report import FIRST_SEED, FULL, QUICK, compare, rows_of, run
from studies.paper.rows import (
    PaperExtent,
    PaperRow,
    RunFigures,
    SetupCollector,
    Simulated,
    figures_of,
    intervals,
    simulate_setups,
    student_t,
)
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


TINY = PaperExtent(steps=3, seeds=2, rollouts=3, first=7)


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
    own = [figures_of(replace(small(), steps=3, seed=seed)) for seed in (7, 8)]
    assert list(runs.known[small()]) == own
    assert runs.throughput(small()) == sum(each.tokens_per_s for each in own) / 2
    assert runs.step_s(small()) == sum(each.step_s for each in own) / 2
    assert runs.rollout_s(rollout) > 0
    assert 0 < runs.reward_use(rollout) <= 1
    assert told[0] == "0 of 5 runs, now Qwen3-8B rollart on 16 GPUs, seed 7"


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


def test_every_set_up_has_at_least_six_seeds():
    asked = SetupCollector()
    compare(asked)
    assert min(len(FULL.seeded(setup)) for setup in asked.setups) == 6
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
        rates.append(sum(figures_of(replace(made, seed=seed)).tokens_per_s for seed in (0, 1)))
    assert rates == sorted(rates)


def made_up(extent: PaperExtent, setups) -> Simulated:
    """Figures that depend on the set-up and on the seed."""
    known = {}
    for made in setups:
        base = 1 + len(str(made)) % 7 + made.alpha + 10 * made.is_rollout
        known[made] = [
            RunFigures(*[base * (1 + 0.01 * ((each.seed * 37 + base) % 11))] * 4)
            for each in extent.seeded(made)
        ]
    return Simulated(known)


@pytest.mark.parametrize(("quick", "seed"), [(True, None), (False, None), (False, 0), (False, 77)])
def test_the_report_is_made_of_what_was_simulated_from_the_seed_asked_for(monkeypatch, quick, seed):
    extent = replace(QUICK if quick else FULL, first=FIRST_SEED if seed is None else seed)

    def pretend(setups, given, *, jobs, progress):
        del progress
        assert (len(setups), given, jobs) == (71, extent, 1)
        return made_up(extent, setups)

    monkeypatch.setattr("studies.paper.report.simulate_setups", pretend)
    report = run(quick=quick, jobs=1, progress=print, seed=seed)
    asked = SetupCollector()
    compare(asked)
    runs = made_up(extent, asked.setups)
    assert report.items() >= compare(runs).items()
    assert report["seeds"] == {
        "first": extent.first,
        "runs": extent.seeds,
        "rollouts": extent.rollouts,
    }
    rows = {row.name: row.simulated for row in rows_of(runs)}
    interval = report["interval"]
    assert isinstance(interval, dict)
    assert list(interval) == list(rows)
    if quick:
        assert (set(interval.values()), report["widest_interval"]) == ({None}, None)
        return
    assert report["widest_interval"] > 0
    assert all(low <= rows[name] + 1e-4 <= high + 2e-4 for name, (low, high) in interval.items())
    assert interval["weights, push, 8B"][0] == interval["weights, push, 8B"][1]


def test_an_interval_is_that_of_a_ratio_of_means():
    """The jackknife of a mean is its standard error, exactly."""
    ours, theirs = small(), small(alpha=2)
    values = [1.0, 1.5, 0.7, 1.3]
    known = {
        ours: [RunFigures(value, 1, 1, 1) for value in values],
        theirs: [RunFigures(2, 1, 1, 1)] * 4,
        small(steps=1): [RunFigures(1, 1, 1, 1)] * 3,
    }

    def rows(runs):
        ratio = runs.throughput(ours) / runs.throughput(theirs)
        yield PaperRow(name="ratio", paper_low=1, paper_high=1, simulated=ratio)

    low, high = intervals(rows, Simulated(known))["ratio"]
    half = 3.182 * stdev(values) / 2 / 4**0.5
    assert (low, high) == pytest.approx((1.125 / 2 - half, 1.125 / 2 + half))
    known[small(steps=1)] = [RunFigures(1, 1, 1, 1)]
    assert intervals(rows, Simulated(known)) == {"ratio": None}
    assert [student_t(1), round(student_t(10), 2), round(student_t(1000), 2)] == [
        12.706,
        2.21,
        1.96,
    ]
