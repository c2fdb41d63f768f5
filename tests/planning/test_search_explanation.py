"""Sentences about a plan: what waits for what, and what another choice would do."""

from dataclasses import replace

from planning_samples import H20, H800, NOWHERE_SPECIAL, make_plan, make_problem

from rollart.hardware.gpus import gpu_named
from rollart.hardware.models import model_named
from rollart.planning.bounds import Bound
from rollart.planning.plan import PoolShare
from rollart.planning.problem import Pool
from rollart.planning.search import PlanResult, bottleneck, explain
from rollart.planning.trials import TrialFigures

BUSY = TrialFigures(
    tokens_per_s=1000.0,
    step_s=100.0,
    training=0.9,
    utilisation={"h800": 0.5, "h20": 0.25},
    staleness=1,
)
IDLE = replace(BUSY, training=0.5)
BOUND = Bound(training_s=60.0, generation_s=40.0, window_s=80.0, slots_s=20.0)


def make_answer(**changes) -> PlanResult:
    fields = {
        "problem": make_problem(),
        "plan": make_plan(),
        "figures": BUSY,
        "bound": BOUND,
        "least": 80.0,
        "gap": 1.25,
        "others": (),
        "divisions": 12,
        "simulated": 9,
        "tried": 7,
        "pruned": 5,
        "untried": 3,
        "events": 1000,
    }
    return PlanResult(**fields | changes)


def test_what_is_busy_is_the_bottleneck_and_else_what_the_bound_says():
    assert bottleneck(make_answer()) == "training"
    engines = replace(IDLE, utilisation={"h800": 0.99, "h20": 0.25})
    assert bottleneck(make_answer(figures=engines)) == "h800"
    assert bottleneck(make_answer(figures=IDLE)) == "window"
    crowded = replace(BOUND, slots_s=90.0)
    assert bottleneck(make_answer(figures=IDLE, bound=crowded)) == "slots"


def test_a_plan_is_explained_from_its_split_to_its_distance_from_the_bound():
    assert explain(make_answer()) == [
        "8 h800 train, 16 h800 (tp 1) + 16 h20 (tp 1) roll out.",
        "h800 serves reader.",
        "h20 serves writer.",
        "The step waits for training: training GPUs train 90% of the time, engines are busy "
        "h800 50%, h20 25%.",
        "No plan that differs from 8 h800 train, 16 h800 (tp 1) + 16 h20 (tp 1) roll out in one "
        "decision was worth simulating.",
        "12 divisions of the GPUs were bounded. Of all plans considered, 7 were simulated "
        "(9 simulations), 5 ruled out by their bounds and 3 not tried because the budget ran out. "
        "The plan is 1.25 times the lowest bound of all plans. Its own bound is set by the time of "
        "a group: its slowest member, its training and its weight update (training 60 s, "
        "generation 40 s, window 80 s, slots 20 s).",
    ]


def test_gpus_without_use_are_named_with_the_reason():
    rollout = (PoolShare(pool=H800, gpus=15, tp=2), PoolShare(pool=H20, gpus=8, tp=1))
    split = explain(make_answer(plan=make_plan(rollout=rollout)))[0]
    assert split.endswith(
        "Not used, because they would cost more than they gain: 1 h800, 8 h20. "
        "Idle, because they are too few for another engine: 1 h800."
    )


def test_tasks_that_go_anywhere_and_a_single_pool_are_told_as_such():
    anywhere = explain(make_answer(plan=make_plan(serves=NOWHERE_SPECIAL)))
    assert "reader, writer go to the least busy engine." in anywhere
    one = make_plan(rollout=(PoolShare(pool=H800, gpus=16, tp=1),), serves={"reader": "h800"})
    assert not any("serves" in line for line in explain(make_answer(plan=one)))


def test_waiting_for_episodes_or_environments_is_said_with_the_way_out():
    lines = explain(make_answer(figures=IDLE))
    assert any(line.startswith("The step waits for episodes:") for line in lines)
    assert any("With alpha = 1 only 2 batches may be outstanding" in line for line in lines)
    slots = replace(BOUND, slots_s=90.0)
    lines = explain(make_answer(figures=IDLE, bound=slots))
    assert any("More environments would shorten it." in line for line in lines)


def test_other_plans_are_named_by_the_decision_in_which_they_differ():
    mine = make_plan()
    writer_moved = make_plan(serves={"reader": "h800", "writer": "h800"})
    more = make_plan(train_gpus=16, rollout=(PoolShare(pool=H800, gpus=8, tp=1), mine.rollout[1]))
    twos = make_plan(rollout=(PoolShare(pool=H800, gpus=16, tp=2), mine.rollout[1]))
    split = make_plan(
        rollout=(PoolShare(pool=H800, gpus=16, tp=1, prefill=1, decode=1), mine.rollout[1])
    )
    others = (
        (writer_moved, 1.2),
        (make_plan(serves={"reader": "h800", "writer": "h800"}, slots=32), 1.3),
        (more, 0.9),
        (twos, 1.004),
        (split, 1.5),
        (make_plan(extra_groups=2, alpha=2), 1.1),
        (make_plan(slots=32), 1.05),
    )
    lines = explain(make_answer(others=others))
    assert lines[4:-1] == [
        "Serving writer on h800 would take 20% more.",
        "1 more node of h800 for training would take 10% less in a short run.",
        "Tp 2 on h800 would take the same.",
        "1P1D on h800 would take 50% more.",
        "2 redundant groups and alpha = 2 would take 10% more.",
        "32 environments would take 5% more.",
    ]


def test_a_plan_that_differs_in_much_is_not_compared():
    other = make_plan(train=H20, extra_groups=2, alpha=3, serves=NOWHERE_SPECIAL)
    lines = explain(make_answer(others=((other, 2.0),)))
    assert lines[4].startswith("No plan that differs")


def test_where_cost_is_the_objective_others_cost_more_or_less():
    problem = make_problem(objective="cost")
    lines = explain(make_answer(problem=problem, others=((make_plan(alpha=2), 1.2),)))
    assert "Alpha = 2 would cost 20% more." in lines


def test_gpus_the_model_does_not_fit_on_are_not_said_to_cost_too_much():
    small = Pool(name="small", gpu=gpu_named("L40S"), count=1)
    problem = make_problem(model=model_named("Qwen3-32B"), pools=(H800, H20, small))
    (split, *_) = explain(make_answer(problem=problem))
    assert split.endswith(" Not used, because the model does not fit on them: 1 small.")
