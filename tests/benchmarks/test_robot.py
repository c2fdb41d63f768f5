"""The robot benchmark: intervals, kept units and the names in its result; nothing is trained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import robot
from benchmarks.robot_parts import costs, units
from benchmarks.robot_parts.estimates import Cells, by_label, difference, estimate
from benchmarks.robot_parts.rewards import RewardUnit, fitted_steps
from rollart_robot.options import GenerativeOptions
from rollart_robot.tasks import find_task


def cells(successes: int, *, of: int = 50, tasks: tuple[str, ...] = ("reach", "push")) -> Cells:
    """Return two seeds of each task, all with this many successes."""
    values = [1.0] * successes + [0.0] * (of - successes)
    return {(task, seed): values for task in tasks for seed in range(2)}


def test_an_estimate_has_the_interval_of_its_binomial():
    found = estimate(cells(25))
    # 200 fair flips: 0.5 ± 1.96 · 0.5 / √200 = 0.069.
    assert found["mean"] == 0.5
    assert found["low"] == pytest.approx(0.431, abs=0.01)
    assert found["high"] == pytest.approx(0.569, abs=0.01)
    assert estimate(cells(50)) == {"mean": 1.0, "low": 1.0, "high": 1.0}


def test_cells_that_differ_widen_the_interval():
    mixed = {("reach", 0): [1.0] * 50, ("reach", 1): [0.0] * 50}
    assert estimate(mixed) == {"mean": 0.5, "low": 0.0, "high": 1.0}


def test_a_paired_difference_is_narrower_than_its_parts():
    # Better by one reset in fifty everywhere: resets that both master add no uncertainty.
    found = difference(cells(26), cells(25))
    assert found["mean"] == 2.0
    assert found["high"] - found["low"] < 5
    assert difference(cells(25), cells(25)) == {"mean": 0.0, "low": 0.0, "high": 0.0}
    with pytest.raises(ValueError, match="not the same runs"):
        difference(cells(1), cells(1, tasks=("reach",)))


def test_classes_keep_their_own_cells():
    found = by_label({("reach", 0): [1.0], ("push", 0): [0.0]}, {"reach": "easy", "push": "hard"})
    assert {name: each["mean"] for name, each in found.items()} == {"easy": 1.0, "hard": 0.0}


def test_success_is_reported_by_objective_class_and_ablation():
    wins = {"omp": 40, "mp1": 30, "flowpolicy": 25, "diffusion": 45}
    wins |= {"no_alignment": 35, "no_dispersive": 38, "jvp": 41, "dde": 40}
    found: Any = robot.report_success({name: cells(count) for name, count in wins.items()})

    assert list(found["success"]) == ["omp", "mp1", "flowpolicy", "diffusion"]
    omp = found["success"]["omp"]
    assert omp["mean"] == 0.8
    assert omp["low"] < 0.8 < omp["high"]
    assert list(omp["by_class"]) == ["easy", "hard"]
    assert omp["by_task"] == {"reach": 0.8, "push": 0.8}
    assert found["omp_over_mp1"]["mean"] == 20.0
    assert found["omp_over_flowpolicy"]["mean"] == 30.0
    assert found["omp_over_mp1"]["low"] > 0
    assert list(found["ablation"]) == ["no_alignment", "no_dispersive", "jvp", "dde"]
    assert found["ablation"]["no_alignment"]["over_omp"]["mean"] == -10.0
    assert found["ablation"]["dde"]["over_omp"]["mean"] == 0.0
    assert json.dumps(found)


def test_costs_are_reported_with_their_ratios():
    memory = {
        "dde": {"peak": 60, "in_step": 20},
        "jvp": {"peak": 70, "in_step": 30},
        "double_backward": {"peak": 80, "in_step": 40},
    }
    times = {"dde": 1.0, "jvp": 2.0, "double_backward": 3.0}
    found = robot.Costs(
        action_ms={"omp": 0.5, "diffusion": 4.5},
        step_ms=times,
        memory=memory,
        memory_points=memory,
    )
    assert robot.report_costs(found) == {
        "omp_ms": 0.5,
        "diffusion_ms": 4.5,
        "diffusion_over_omp": 9.0,
        "step_ms": times,
        "memory": {"dde": 60, "jvp": 70, "double_backward": 80},
        "memory_in_step": {"dde": 20, "jvp": 30, "double_backward": 40},
        "memory_points": {"dde": 60, "jvp": 70, "double_backward": 80},
        "dde_below_double_backward": 0.25,
    }


def test_the_peak_of_memory_is_what_is_held_at_a_time():
    def work() -> None:
        first = torch.zeros(1000)
        second = first + 1
        del first, second
        torch.zeros(1500)

    # A number that is added to a tensor is a small tensor too.
    assert 8000 <= costs.peak_bytes(work) < 8100


def test_rewards_are_reported_by_task():
    start = {"demonstrations": 5, "steps": 400, "success_at_choice": 0.5}
    result = {
        "start": start,
        "before": [True, False],
        "after": [True, True],
        "took_s": 90.0,
        "lost": 0,
        "trained_twice": 0,
    }
    unit = RewardUnit(task="reach", seed=0, steps=4, resets=2)
    assert robot.report_learning([(unit, result)]) == {
        "rl_before": {"reach": {"mean": 0.5, "low": 0.0, "high": 1.0}},
        "rl_after": {"reach": {"mean": 1.0, "low": 1.0, "high": 1.0}},
        "rl_gain": {"reach": {"mean": 50.0, "low": 0.0, "high": 100.0}},
        "rl_start": {"reach": [start]},
        "rl_minutes": 1.5,
        "rl_lost": 0,
        "rl_trained_twice": 0,
    }


def test_paces_are_reported_as_the_median_of_paired_ratios():
    found = robot.report_paces(
        {"faulty": [(4.0, 2.0), (9.0, 3.0), (2.0, 2.0)], "healthy": [(3, 2)]}
    )
    assert (found["rollart_over_sync"], found["rollart_over_sync_healthy"]) == (2.0, 1.5)


def test_a_slow_machine_makes_fewer_steps():
    plain, full = robot.EDITIONS["plain"], robot.EDITIONS["full"]
    assert robot.fitted(plain, step_s=0.002) == plain
    slow = robot.fitted(plain, step_s=0.02)
    assert 100 < slow.imitation.steps < plain.imitation.steps
    assert robot.fitted(plain, step_s=9.0).imitation.steps == 100
    assert robot.fitted(full, step_s=9.0) == full

    unit = RewardUnit(task="reach", seed=0, steps=60, resets=2, groups=4, limit_s=60.0)
    assert fitted_steps(unit, 0.05) == 18  # of 32 episodes of 0.05 s, twice as long in a run
    assert fitted_steps(unit, 0.001) == 60
    assert fitted_steps(unit, 50.0) == 2
    assert fitted_steps(replace(unit, limit_s=0.0), 50.0) == 60


def test_adroit_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    edition = robot.EDITIONS["plain"]
    monkeypatch.delenv(robot.EXPERTS, raising=False)
    assert str(robot._adroit(edition, tmp_path)).startswith(f"no experts: set {robot.EXPERTS}")
    monkeypatch.setenv(robot.EXPERTS, str(tmp_path))
    assert "door.npz" in str(robot._adroit(edition, tmp_path))
    assert robot.report_adroit({"omp": cells(25, tasks=("adroit-pen",))})["pen"]


def test_a_finished_unit_is_read_and_not_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def unit(options: GenerativeOptions) -> units.Unit:
        return units.Unit(task="reach", policy=options.resolved(), seed=0, resets=2)

    omp, mp1 = unit(GenerativeOptions()), unit(GenerativeOptions(objective="mp1"))
    # dde is what omp has anyway, so the ablation is the same policy.
    assert units.key_of(omp) == units.key_of(unit(GenerativeOptions(derivative="dde")))
    assert units.key_of(omp) != units.key_of(mp1)
    units.Store(tmp_path).write(omp, {"successes": [True, False]})
    assert units.run_units([omp], tmp_path) == {units.key_of(omp): [True, False]}
    monkeypatch.setattr(units, "sources_digest", lambda: "changed")
    assert units.Store(tmp_path).read(omp) is None


def test_the_full_edition_has_two_tasks_of_each_class():
    classes = [find_task(task).difficulty for task in robot.EDITIONS["full"].tasks]
    assert classes == ["easy"] * 2 + ["medium"] * 2 + ["hard"] * 2 + ["very hard"] * 2
