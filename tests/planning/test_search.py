from dataclasses import replace

import pytest
from planning_samples import H20, H800, make_problem, make_rules

from rollart.config.simulation import Constants
from rollart.planning.bounds import Bounds
from rollart.planning.candidates import find
from rollart.planning.search import bottleneck, explain, search
from rollart.planning.trials import Scale, TrialRunner

EVENTS = 60_000
SHORT = Scale(attempts=128, steps=5, skip=2)


@pytest.fixture(scope="module")
def answer():
    return search(make_problem(extra_groups=(0, 2)), events=EVENTS)


def test_the_plan_uses_what_there_is(answer):
    assert answer.plan.unused(answer.problem) == {}
    assert answer.plan.serves.keys() == {"reader", "writer"}
    assert answer.gap >= 1 - 1e-9
    assert answer.figures.staleness <= 1


def test_the_same_problem_gives_the_same_plan(answer):
    assert search(make_problem(extra_groups=(0, 2)), events=EVENTS) == answer


def test_no_plan_tried_was_much_better_in_the_short_runs(answer):
    assert answer.others
    assert all(ratio > 0.9 for _, ratio in answer.others)


def test_the_cheapest_plan_costs_no_more_than_the_fastest(answer):
    cheap = search(make_problem(objective="cost"), events=EVENTS)
    assert cheap.cost <= answer.cost
    assert cheap.plan.hour_price <= answer.plan.hour_price


def test_progress_is_told():
    told: list[str] = []
    search(make_problem(pools=(replace(H800, tp=1),)), events=1, progress=told.append)
    assert told == [
        "2 divisions of the GPUs, 2 candidates",
        "candidates: 1 simulated, 0 ruled out by their bounds, "
        "1 not tried because the budget ran out",
        "plans in all: 1 simulated, 0 ruled out by their bounds, "
        "5 not tried because the budget ran out",
    ]


def test_an_answer_is_explained_in_sentences(answer):
    text = explain(answer)
    assert text[0] == f"{answer.plan}."
    assert text[-1].startswith(f"{answer.divisions} divisions of the GPUs were bounded")
    assert f"{answer.gap:.2f} times the lowest bound" in text[-1]
    assert any(" would take " in sentence for sentence in text)
    assert bottleneck(answer) in {"training", "h800", "h20", "window", "slots"}


def test_every_plan_is_simulated_ruled_out_or_left_untried(answer):
    candidates = find(Bounds(answer.problem), most=40)
    assert answer.tried + answer.pruned + answer.untried >= len(candidates.plans) + len(
        candidates.rest
    )
    assert answer.tried <= answer.simulated
    assert f"{answer.pruned} ruled out by their bounds" in explain(answer)[-1]
    assert f"{answer.untried} not tried because the budget ran out" in explain(answer)[-1]


def test_others_are_compared_over_runs_of_the_same_length(answer):
    runner = TrialRunner(Bounds(answer.problem), events=0)
    base = runner.run(runner.trial(answer.plan), SHORT).step_s
    for plan, ratio in answer.others[:3]:
        assert runner.run(runner.trial(plan), SHORT).step_s / base == ratio


@pytest.mark.parametrize(("mode", "alpha"), [("rollart", 1), ("rollart", 0), ("sync", 0)])
def test_one_node_is_planned(mode, alpha):
    rules = make_rules(mode, alpha=alpha)
    answer = search(make_problem(pools=(replace(H800, count=8),), rules=rules), events=1)
    assert answer.plan.unused(answer.problem) == {}
    assert answer.plan.alpha == alpha


def test_idle_gpus_are_told():
    told: list[str] = []
    pool = replace(H800, count=7, tp=4)
    answer = search(make_problem(pools=(pool,)), events=1, progress=told.append)
    assert told[-1] == "idle: 1 GPU of h800 is too few for another engine"
    assert explain(answer)[0].endswith("Idle, because they are too few for another engine: 1 h800.")


def test_few_environments_are_named_as_the_bottleneck():
    answer = search(
        make_problem(
            pools=(H800, replace(H20, role="rollout")),
            most_slots=4,
            constants=Constants(train_fixed_s=10.0),
        ),
        events=1,
    )
    assert answer.plan.slots == 4
    assert bottleneck(answer) == "slots"
    assert any(
        sentence.startswith("The step waits for environments") for sentence in explain(answer)
    )
