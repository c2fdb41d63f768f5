import json
from dataclasses import replace

import pytest

from rollart.sim.beyond import CHOICES, QUICK, RULES, Extent, divided, low, study, world
from rollart.sim.paper import setup as paper
from rollart.sim.paper.setup import TASKS

SMALL = Extent(steps=4, skip=1, seeds=(1, 2), tasks=TASKS[4:], mix_part=8, task_part=8)


def test_the_study_gives_the_same_bytes_again_and_every_figure_asked_for():
    said = []
    result = study(SMALL, progress=said.append)
    assert json.dumps(result) == json.dumps(study(SMALL, progress=lambda _: None))
    assert len(said) == (2 + 2) * (1 + len(CHOICES))
    assert list(result["alone"]) == list(RULES)
    assert result["together_low"] <= result["together"]
    assert list(result["per_seed"]) == ["1", "2"]
    worst = min(result["single_tasks"], key=lambda row: row["gain"])
    assert result["worst_single_task"] == worst["gain"]
    assert result["worst_single_task_low"] == worst["low"] <= worst["gain"] <= worst["high"]
    assert {row["task"] for row in result["single_tasks"]} == {"game"}
    assert [row["rules"] for row in result["mix"]] == [*RULES, "together"]
    assert all(row["staleness"] <= 2 for row in result["mix"])


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
