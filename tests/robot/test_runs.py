"""Robot policies on the runtime that trains language agents: whole runs on toy-reach."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from robot_runs import imitation_config, training_config, write_demonstrations, write_model

import rollart
from rollart_robot import env_process
from rollart_robot.runtime import load_policy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("runs"), steps=200)


RETRY = {"backoff_s": 0.01, "backoff_max_s": 0.02}


def rows(run: rollart.Run, key: str) -> list[Any]:
    return [row[key] for row in run.metrics if key in row]


def is_sound(run: rollart.Run) -> bool:
    proof = run.replay()
    return (proof["lost"], proof["trained_twice"]) == (0, 0)


def test_imitation_learns_and_then_rewards_do(tmp_path: Path):
    demonstrations = write_demonstrations(tmp_path)
    sections = imitation_config(tmp_path, demonstrations, evaluate_every=30)
    sections["policy"]["imitation"] = {"learning_rate": 1e-3, "warmup_steps": 10}
    imitation = rollart.train(sections)
    losses = rows(imitation, "loss")
    assert len(losses) == 60
    assert sum(losses[-10:]) < sum(losses[:10])
    assert len(rows(imitation, "eval/success_rate")) == 2
    assert 0.0 <= imitation.summary["success_after"] <= 1.0
    assert (imitation.directory / "learning_curve.png").is_file()

    sections = training_config(
        tmp_path, imitation.directory, run={"evaluate_episodes": 4, "mode": "sync"}
    )
    run = rollart.train(sections)
    assert rows(run, "trainer/anchor_distance")[0] == 0.0
    assert run.summary["success_before"] is not None
    assert is_sound(run)
    assert rollart.evaluate(run, episodes=3)["episodes"] == 3


def test_children_compute_the_environments_and_successes_are_imitated(model: Path, tmp_path: Path):
    sections = training_config(
        tmp_path, model, run={"mode": "sync"}, task={"options": {"processes": 1}}
    )
    sections["policy"] |= {
        "self_imitation": 2,
        "demonstrations": str(write_demonstrations(tmp_path)),
    }
    try:
        run = rollart.train(sections)
        assert list(env_process._children) == [0]
    finally:
        env_process.end_children()
    assert len(rows(run, "reward_mean")) == 2
    assert is_sound(run)


def test_a_resumed_imitation_equals_one_that_was_not_stopped(tmp_path: Path):
    demonstrations = write_demonstrations(tmp_path)
    # run.steps is the length of the learning rate's schedule as well, so it stays the same.
    quick: dict[str, Any] = {"steps": 10, "evaluate_episodes": 0}
    whole = rollart.train(imitation_config(tmp_path / "whole", demonstrations, **quick))
    parts = imitation_config(
        tmp_path / "parts", demonstrations, **quick, checkpoint_every=4, keep_checkpoints=5
    )
    rollart.train(parts)
    middle = tmp_path / "parts" / "imitation" / "checkpoints" / "step-000004"
    again = rollart.train(parts, resume=middle)
    assert rows(again, "loss") == rows(whole, "loss")

    def weights(run: rollart.Run) -> dict[str, torch.Tensor]:
        return load_policy(run.checkpoints[-1]).state_dict()

    expected, found = weights(whole), weights(again)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def failures(run: rollart.Run) -> set[str]:
    """Return why attempts failed."""
    lines = (run.directory / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line).get("event", {}) for line in lines]
    failed = [each for each in events if each.get("type") == "TrajectoryFailed"]
    return {each["failure"]["kind"] for each in failed}


FAULTS = {
    "options": {"hung_slots": [1], "slow_slots": {"2": 0.005}},
    "step_timeout_s": 0.5,
}


@pytest.fixture(scope="module")
def faulty(model: Path, tmp_path_factory: pytest.TempPathFactory) -> rollart.Run:
    """A run in mode rollart with one hung and one slow environment among four."""
    folder = tmp_path_factory.mktemp("faulty")
    return rollart.train(training_config(folder, model, task=FAULTS, retry=RETRY))


def test_one_hung_environment_does_not_stop_the_run(faulty: rollart.Run, model: Path):
    assert len(rows(faulty, "trainer/updates")) == 2
    assert is_sound(faulty)
    assert failures(faulty) == {"env_timeout"}
    before, after = (load_policy(each) for each in (model, faulty.checkpoints[-1]))
    assert after.state_dict().keys() == before.state_dict().keys()
    assert torch.equal(after.states.centre, before.states.centre)
    assert any(
        not torch.equal(new, old)
        for new, old in zip(after.parameters(), before.parameters(), strict=True)
    )


def test_a_run_is_resumed(faulty: rollart.Run, model: Path):
    folder = faulty.directory.parent
    sections = training_config(folder, model, run={"steps": 3}, task=FAULTS, retry=RETRY)
    run = rollart.train(sections, resume=faulty.directory)
    assert [row["step"] for row in run.metrics if "trainer/updates" in row] == [1, 2, 3]
    assert run.summary["resumed_at"] == 2
    assert is_sound(run)


def test_it_runs_on_a_cluster(model: Path, tmp_path: Path):
    run = rollart.train(training_config(tmp_path, model, ray={"address": "local"}))
    assert len(rows(run, "trainer/updates")) == 2
    assert is_sound(run)
