"""The examples of robot policies run as they are shipped, shortened."""

from pathlib import Path

import pytest
from checkout import ROOT

import rollart
from rollart.cli import main

EXAMPLES = ROOT / "examples"


def test_the_examples_train_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    quick = ["run.environments=4", "run.evaluate_episodes=2"]
    assert main(["robot", "demos", "toy-reach"]) == 0
    imitation = [str(EXAMPLES / "robot_imitation.toml"), "run.steps=30", *quick]
    assert (
        main(["train", *imitation, "run.evaluate_every=0", "policy.imitation.warmup_steps=5"]) == 0
    )
    learning = [str(EXAMPLES / "robot_rl.toml"), "run.steps=1", "run.evaluate_every=0", *quick]
    assert main(["train", *learning, "batching.groups_per_step=1"]) == 0
    run = rollart.read_run(tmp_path / "runs" / "robot_rl")
    assert run.summary["steps"] == 1
    assert run.replay()["lost"] == 0
