from dataclasses import replace

from planning_samples import H800, make_problem

from rollart.planning.published import paper_problem, production_problem
from rollart.planning.report import badly_divided, paper_split
from rollart.planning.worlds import Scale
from rollart.sim.paper.setup import SIZES


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
