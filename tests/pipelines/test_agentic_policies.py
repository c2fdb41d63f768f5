"""A policy that is no language model trains on the same runtime, from one module."""

from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from toy_policy import Line

import rollart
from rollart.config.checks import open_policy
from rollart.errors import ConfigError, UserError

SUPPORT = str(ROOT / "tests" / "support")


def config(directory: Path, **sections: Any) -> dict[str, Any]:
    run = {
        "directory": str(directory / "run"),
        "steps": 30,
        "environments": 8,
        "evaluate_episodes": 20,
        "import_paths": [SUPPORT],
    }
    return {
        "run": run | sections.pop("run", {}),
        "model": {"path": str(directory / "start")},
        "policy": {"type": "toy_policy:Line", "spread": 0.4},
        "engine": {"name": "scripted"},
        "tasks": {"doubling": {"env": "toy_policy:Doubling", "player": "toy_policy:LinePlayer"}},
        "training": {"learning_rate": 3.0},
        "batching": {"groups_per_step": 4, "group_size": 4},
        **sections,
    }


@pytest.mark.parametrize("mode", ["sync", "rollart"])
def test_a_policy_that_acts_on_arrays_learns(tmp_path: Path, mode: str) -> None:
    run = rollart.train(config(tmp_path, run={"mode": mode}))

    slopes = [row["trainer/slope"] for row in run.metrics if "trainer/slope" in row]
    assert len(slopes) == 30
    assert slopes[-1] == pytest.approx(2.0, abs=0.7)
    assert run.summary["success_after"] > run.summary["success_before"]
    proof = run.replay()
    assert (proof["lost"], proof["trained_twice"]) == (0, 0)


def test_its_run_is_resumed_and_evaluated(tmp_path: Path) -> None:
    rollart.train(config(tmp_path, run={"steps": 3, "checkpoint_every": 3}))
    run = rollart.train(config(tmp_path, run={"steps": 6}), resume=tmp_path / "run")

    rows = [row for row in run.metrics if "trainer/slope" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert run.summary["resumed_at"] == 3
    assert rollart.evaluate(run, episodes=5)["episodes"] == 5


def test_its_policy_plays_on_a_cluster(tmp_path: Path) -> None:
    run = rollart.train(config(tmp_path, run={"steps": 4}, ray={"address": "local"}))

    assert len([row for row in run.metrics if "trainer/slope" in row]) == 4
    assert run.replay()["lost"] == 0


def test_an_observation_that_is_not_finite_is_a_failure_of_the_environment(tmp_path: Path) -> None:
    sections = config(tmp_path)
    sections["tasks"]["doubling"]["options"] = {"broken": True}

    with pytest.raises(UserError, match="not finite"):
        rollart.train(sections)


def test_the_turn_player_says_that_it_reads_text(tmp_path: Path) -> None:
    sections = config(tmp_path)
    sections["tasks"]["doubling"]["player"] = "turns"

    with pytest.raises(UserError, match="choose a player that reads them"):
        rollart.train(sections)


def test_a_kind_of_policy_needs_a_runtime(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setattr("toy_policy.Line.runtime", "nothing")
    settings = rollart.load_config(config(tmp_path))
    assert settings.policy == Line(spread=0.4)

    with pytest.raises(ConfigError, match="needs a class attribute runtime"):
        open_policy(settings)
