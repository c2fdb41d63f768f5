"""Robot policies on the runtime that trains language agents: whole runs on toy-reach."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from robot_runs import imitation_config, training_config, write_demonstrations, write_model

import rollart
from rollart_robot.runtime import load_policy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("runs"), steps=200)


def rows(run: rollart.Run, key: str) -> list[Any]:
    return [row[key] for row in run.metrics if key in row]


def is_sound(run: rollart.Run) -> bool:
    proof = run.replay()
    return (proof["lost"], proof["trained_twice"]) == (0, 0)


def test_imitation_learns_and_then_rewards_do(tmp_path: Path):
    demonstrations = write_demonstrations(tmp_path)
    sections = imitation_config(tmp_path, demonstrations, evaluate_every=30)
    imitation = rollart.train(sections)
    losses = rows(imitation, "loss")
    assert len(losses) == 60
    assert losses[-1] < losses[0]
    assert rows(imitation, "eval/episodes") == [4, 4]
    assert 0.0 <= imitation.summary["success_after"] <= 1.0
    assert (imitation.directory / "learning_curve.png").is_file()

    sections = training_config(tmp_path, imitation.directory, run={"evaluate_episodes": 4})
    run = rollart.train(sections)
    assert rows(run, "trainer/anchor_distance")[0] == 0.0
    assert run.summary["success_before"] is not None
    assert is_sound(run)
    assert rollart.evaluate(run, episodes=3)["episodes"] == 3


def test_a_resumed_imitation_equals_one_that_was_not_stopped(tmp_path: Path):
    demonstrations = write_demonstrations(tmp_path)
    quick: dict[str, Any] = {"steps": 10, "evaluate_episodes": 0}
    whole = rollart.train(imitation_config(tmp_path / "whole", demonstrations, **quick))
    # Stopped in the middle: run.steps is the length of the learning rate's cosine as well.
    parts = imitation_config(tmp_path / "parts", demonstrations, **quick, checkpoint_every=4)
    rollart.train(parts)
    middle = tmp_path / "parts" / "imitation" / "checkpoints" / "step-000004"
    again = rollart.train(parts, resume=middle)
    assert rows(again, "loss") == rows(whole, "loss")

    def weights(run: rollart.Run) -> dict[str, torch.Tensor]:
        return load_policy(run.checkpoints[-1]).state_dict()

    expected, found = weights(whole), weights(again)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("mode", ["sync", "rollart"])
def test_every_mode_trains_each_trajectory_once(model: Path, tmp_path: Path, mode: str):
    run = rollart.train(training_config(tmp_path, model, run={"mode": mode, "steps": 3}))
    assert len(rows(run, "trainer/updates")) == 3
    assert is_sound(run)
    moved = [
        not torch.equal(value, load_policy(model).state_dict()[name])
        for name, value in load_policy(run.checkpoints[-1]).state_dict().items()
    ]
    assert any(moved)


def test_a_run_is_resumed(model: Path, tmp_path: Path):
    rollart.train(training_config(tmp_path, model, run={"checkpoint_every": 2}))
    sections = training_config(tmp_path, model, run={"steps": 4})
    run = rollart.train(sections, resume=tmp_path / "run")
    assert [row["step"] for row in run.metrics if "trainer/updates" in row] == [1, 2, 3, 4]
    assert run.summary["resumed_at"] == 2
    assert is_sound(run)


def test_one_hung_environment_does_not_stop_the_run(model: Path, tmp_path: Path):
    task = {"options": {"hung_slots": [1], "slow_slots": {"2": 0.005}}, "step_timeout_s": 0.5}
    retry = {"backoff_s": 0.01, "backoff_max_s": 0.02}
    run = rollart.train(training_config(tmp_path, model, task=task, retry=retry))
    assert len(rows(run, "trainer/updates")) == 2
    assert is_sound(run)
    events = (run.directory / "events.jsonl").read_text().splitlines()
    assert any("did not answer" in json.dumps(json.loads(line)) for line in events) or events


def test_it_runs_on_a_cluster(model: Path, tmp_path: Path):
    run = rollart.train(training_config(tmp_path, model, ray={"address": "local"}))
    assert len(rows(run, "trainer/updates")) == 2
    assert is_sound(run)
