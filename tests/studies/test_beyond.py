import json
from dataclasses import replace

import pytest

from rollart.sim.from_config import TASKS
from studies.beyond import (
    CHOICES,
    FULL,
    QUICK,
    RULES,
    BeyondExtent,
    Case,
    divided,
    low,
    study,
    world,
)
from studies.paper import setup as paper

SMALL = BeyondExtent(
    steps=4, skip=1, seeds=(1, 2), tasks=TASKS[4:], mix_part=8, task_part=8, fixed=(16,)
)


@pytest.fixture(scope="module")
def result():
    return study(SMALL)


def test_the_study_gives_the_same_bytes_again_and_every_figure_asked_for(result):
    said = []
    assert json.dumps(result) == json.dumps(study(SMALL, progress=said.append))
    plain, added = 1 + 1 + 2, 2 * len(CHOICES)
    assert len(said) == 2 * (plain + added)
    assert list(result["alone"]) == list(RULES)
    assert result["together_low"] <= result["together"]
    assert list(result["per_seed"]) == ["1", "2"]
    worst = min(result["single_tasks"], key=lambda row: row["gain"])
    assert result["worst_single_task"] == worst["gain"]
    assert result["worst_single_task_low"] == worst["low"] <= worst["gain"] <= worst["high"]
    assert {row["task"] for row in result["single_tasks"]} == {"game"}
    assert [row["rules"] for row in result["mix"]] == [*RULES, "together"]
    assert all(row["staleness"] <= 2 for row in result["mix"])
    assert list(result["fixed_redundancy"]) == ["16"]
    best = max(result["fixed_redundancy"].values())
    assert result["adaptive_over_best_fixed"] == result["alone"]["redundancy"] / best


def test_a_task_alone_starts_from_the_better_of_table_and_any_engine(result):
    table = result["table_over_any_engine"]["game"]
    start = "rollart" if table > 1 else "rollart, any engine"
    assert {row["start"] for row in result["single_tasks"]} == {start}


def test_cases_are_named_by_what_they_add():
    case = Case(extent=FULL, tasks=TASKS[4:], seed=3)
    assert str(case) == "game, rollart, seed 3"
    assert replace(case, has_table=False).name == "rollart, any engine"
    assert replace(case, has_table=False).world.routing.affinity == {}
    assert replace(case, rules=RULES).name == "together"
    assert replace(case, rules=("lending",)).name == "lending"
    assert replace(case, extra_groups=16).name == "16 redundant groups"
    assert replace(case, extra_groups=16).setup.extra_groups == 4


def test_both_sides_have_the_same_hardware_environments_and_bound():
    setup = divided(replace(paper.testbed("32B", "rollart"), tasks=TASKS), part=4)
    plain, beyond = (world(setup, rules) for rules in ((), RULES))
    assert (setup.compute, setup.bandwidth, setup.train) == (16, 8, 8)
    assert plain.slots == beyond.slots == 64
    assert plain.rules.staleness.alpha == beyond.rules.staleness.alpha == 1
    assert plain.rules == setup.world.rules
    assert beyond.routing.learn
    assert beyond.rules.lending.enabled
    assert beyond.rules.dispatch.order == "longest"
    assert beyond.rules.redundancy.adaptive


def test_the_lower_bound_is_students():
    assert low([1.0, 1.0, 1.0]) == 1.0
    assert low([1.0, 1.2]) == pytest.approx(1.1 - 12.706 * 0.1)


def test_the_quick_study_is_a_smaller_one():
    assert (QUICK.steps, len(QUICK.seeds)) == (6, 2)
