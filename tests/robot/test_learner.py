"""Imitation with checkpoints: resume to the bit, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from robot_runs import SMALL, make_learner, write_demonstrations
from safetensors.torch import load_file

from rollart.errors import UserError
from rollart_robot.learner import RobotLearner
from rollart_robot.options import GenerativeOptions
from rollart_robot.runtime import WEIGHTS, RobotPolicy, load_policy


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demonstrations(tmp_path_factory.mktemp("learner"))


def test_a_resumed_learner_continues_to_the_bit(demonstrations: Path, tmp_path: Path):
    whole = make_learner(demonstrations)
    for _ in range(7):
        whole.step()
    whole.save(str(tmp_path / "saved"))
    resumed = make_learner(demonstrations)
    assert resumed.load(str(tmp_path / "saved")) == 7
    assert [resumed.step() for _ in range(5)] == [whole.step() for _ in range(5)]
    for learner, name in ((whole, "whole"), (resumed, "resumed")):
        learner.save(str(tmp_path / name))
    for file in (WEIGHTS, "optimizer.safetensors"):
        one, other = load_file(tmp_path / "whole" / file), load_file(tmp_path / "resumed" / file)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_model_of_a_checkpoint_is_the_average_with_its_normalisers(
    demonstrations: Path, tmp_path: Path
):
    learner = make_learner(demonstrations)
    for _ in range(5):
        learner.step()
    learner.save(str(tmp_path / "saved"))
    policy, average = load_policy(tmp_path / "saved"), learner._trainer.average
    assert policy.options == GenerativeOptions(**SMALL).resolved()
    states, noise = torch.rand(3, 2, 6), torch.randn(3, 4, 2)
    assert torch.equal(policy.act(states, noise), average.act(states, noise))
    assert not torch.equal(policy.states.centre, torch.zeros(6))
    assert torch.equal(policy.actions.radius, average.actions.radius)


def test_a_short_run_has_a_short_warm_up(demonstrations: Path):
    learner = make_learner(demonstrations, steps=2)
    rates = [learner.step()["learning_rate"] for _ in range(2)]
    assert rates[0] == pytest.approx(1e-4)


def test_another_policy_cannot_resume_from_it(demonstrations: Path, tmp_path: Path):
    learner = make_learner(demonstrations)
    learner.step()
    learner.save(str(tmp_path / "saved"))
    wider = RobotPolicy(width=64, blocks=1)
    other = RobotLearner(wider, steps=40, demonstrations=demonstrations)
    with pytest.raises(UserError, match="resume with the policy options and demonstrations"):
        other.load(str(tmp_path / "saved"))
    with pytest.raises(UserError, match="not a checkpoint of this imitation"):
        make_learner(demonstrations).load(str(tmp_path))


def test_a_dimension_that_never_changes_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    states = np.random.default_rng(0).uniform(size=(20, 3)).astype(np.float32)
    states[:, 1] = 0.5
    ends = np.array([10, 20])
    np.savez(tmp_path / "own.npz", states=states, actions=states[:, ::2], episode_ends=ends)
    make_learner(tmp_path / "own.npz")
    assert "warning:" in (said := capsys.readouterr().err)
    assert "dimensions 1 of the states never change" in said
