from dataclasses import replace

from planning_samples import H800, make_problem

from rollart.config.simulation import Constants
from rollart.planning.trials import Scale
from studies.paper.setup import SIZES
from studies.planner import (
    FULL,
    QUICK,
    Effort,
    badly_divided,
    paper_problem,
    paper_split,
    production_problem,
    study,
)


def test_the_papers_split_is_as_published():
    assert [str(paper_split(size)) for size in SIZES] == [
        f"32 h800 train, 64 h800 (tp {tp}) + 32 h20 (tp {tp}) roll out" for tp in (1, 2, 4)
    ]
    plan = paper_split("32B")
    assert plan.serves == {
        "swe": "h800",
        "webshop": "h800",
        "frozenlake": "h800",
        "math": "h20",
        "game": "h20",
    }
    assert plan.alpha == 1


def test_the_papers_split_leaves_nothing_unused():
    for size in SIZES:
        assert paper_split(size).unused(paper_problem(size)) == {}


def test_swe_is_trained_on_by_the_largest_model_only():
    tasks = [[task.name for task in paper_problem(size).tasks] for size in SIZES]
    assert ["swe" in names for names in tasks] == [False, False, True]


def test_the_bad_start_is_where_the_trainer_waits_as_long_as_the_papers_did():
    problem = make_problem(pools=(replace(H800, count=32, tp=1),), reuse_prefixes=False)
    plan, waiting = badly_divided(problem, Scale(attempts=32, steps=4, skip=1))
    assert plan.unused(problem) == {}
    assert 0 <= waiting < 1
    assert production_problem().reuse_prefixes


def test_the_study_in_small_has_every_figure_and_the_same_ones_again():
    run = Scale(attempts=16, steps=3, skip=1, seed=10)
    effort = Effort(events=5_000, comparing=(run,), probing=replace(run, seed=9))
    constants = Constants(push_gb_s=0.5)
    shape = make_problem(pools=(replace(H800, count=32, tp=1),), constants=constants)
    said: list[str] = []
    result = study(effort, sizes=("8B",), shape=shape, progress=said.append)
    assert said[0] == "planning 8B on 96 H800 and 32 H20"
    again = study(effort, sizes=("8B",), shape=shape, progress=said.append)
    assert list(result) == [
        "over_paper_split",
        "seconds",
        "cpu_seconds",
        "production_gain",
        "plans",
        "gap",
        "untried",
        "production",
    ]
    for each in (result, again):
        del each["seconds"], each["cpu_seconds"]
    assert result == again
    production = result["production"]
    assert result["production_gain"] == production["gain"]
    assert production["gain"] >= 0.9 * production["gain_from_prefixes"]
    assert 0 < production["start_waiting"] < 1


def test_plans_are_compared_on_five_seeds_that_no_search_has_seen():
    seeds = [scale.seed for scale in FULL.comparing]
    assert len(seeds) == 5
    assert min(seeds) > 9
    assert len(QUICK.comparing) == 1
