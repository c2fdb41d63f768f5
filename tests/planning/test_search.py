from dataclasses import replace

import pytest
from planning_samples import H20, H800, make_problem

from rollart.planning.explaining import bottleneck, explain
from rollart.planning.search import search

EVENTS = 60_000


@pytest.fixture(scope="module")
def answer():
    return search(make_problem(extra_groups=(0, 2)), events=EVENTS)


def test_the_plan_uses_what_there_is(answer):
    assert answer.plan.unused(answer.problem) == {}
    assert answer.plan.serves.keys() == {"reader", "writer"}
    assert answer.gap >= 1
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
    assert told[0] == "2 divisions of the GPUs, 2 candidates"


def test_an_answer_is_explained_in_sentences(answer):
    text = explain(answer)
    assert text[0] == f"{answer.plan}."
    assert text[-1].startswith(f"{answer.divisions} divisions of the GPUs were bounded")
    assert f"{answer.gap:.2f} times the least bound" in text[-1]
    assert any(" would take " in sentence for sentence in text)
    assert bottleneck(answer) in {"training", "h800", "h20", "window", "slots"}


def test_few_environments_are_named_as_the_bottleneck():
    answer = search(
        make_problem(pools=(H800, replace(H20, role="rollout")), most_slots=4), events=1
    )
    assert answer.plan.slots == 4
    assert bottleneck(answer) == "slots"
    assert any(
        sentence.startswith("The step waits for environments") for sentence in explain(answer)
    )
