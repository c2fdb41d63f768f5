"""A robot policy as the policy of a run: model directories, options and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from robot_runs import imitation_config, training_config, write_demonstrations, write_model

import rollart
from rollart.errors import ConfigError, UserError
from rollart_robot.runtime import CONFIG, WEIGHTS, RobotRuntime, find_model, load_policy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("runtime"))


def runtime_of(sections: dict[str, Any]) -> RobotRuntime:
    return RobotRuntime(rollart.load_config(sections))


def refusal(sections: dict[str, Any]) -> str:
    """Return what `rollart.train` says; it must refuse before it makes a directory."""
    with pytest.raises(UserError) as caught:
        rollart.train(sections)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_policy_with_published_weights_acts_as_they_say(model: Path, tmp_path: Path):
    runtime = runtime_of(training_config(tmp_path, model))
    start = load_policy(model)
    weights = {name: value.numpy().copy() for name, value in start.state_dict().items()}
    weights["actions.centre"] += 1.0
    actor = runtime.load(model, weights)
    assert actor.spread == 0.12
    states, noise = torch.rand(3, 2, 6), torch.randn(3, 4, 2)
    moved = actor.policy.act(states, noise) - start.act(states, noise)
    assert torch.allclose(moved, torch.ones(3, 4, 2), atol=1e-6)


def test_a_model_is_a_directory_or_the_newest_checkpoint_of_a_run(model: Path, tmp_path: Path):
    assert find_model(str(model)) == model
    for step in (1, 12, 5):
        place = tmp_path / "run" / "checkpoints" / f"step-{step:06}"
        place.mkdir(parents=True)
        (place / WEIGHTS).write_bytes(b"")
    newest = tmp_path / "run" / "checkpoints" / "step-000012"
    assert find_model(str(tmp_path / "run")) == newest


def test_a_resumed_run_stays_near_the_model_that_it_started_from(model: Path, tmp_path: Path):
    runtime = runtime_of(training_config(tmp_path, model))
    assert runtime.find(tmp_path, {"start": "runs/first"}, print) == Path("runs/first")
    assert runtime.find(tmp_path, {}, print) == model


@pytest.mark.parametrize("damage", ["weights", "config", "other sizes"])
def test_a_damaged_model_is_one_message(model: Path, tmp_path: Path, damage: str):
    for name in (CONFIG, WEIGHTS):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    if damage == "weights":
        (tmp_path / WEIGHTS).write_bytes(b"not tensors")
    elif damage == "config":
        (tmp_path / CONFIG).write_text("{}")
    else:
        described = json.loads((model / CONFIG).read_text())
        (tmp_path / CONFIG).write_text(json.dumps(described | {"state_size": 7}))
    with pytest.raises(UserError, match="not a robot policy of this version") as caught:
        load_policy(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_demonstrations_are_refused(tmp_path: Path):
    sections = imitation_config(tmp_path, tmp_path / "none.npz")
    assert "policy.demonstrations = " in (said := refusal(sections))
    assert "rollart robot demos TASK --out FILE" in said
    sections["policy"].pop("demonstrations")
    assert "imitation needs a file of demonstrations" in refusal(sections)
    assert not (tmp_path / "imitation").exists()


def test_a_file_that_is_no_demonstration_is_refused(tmp_path: Path):
    (tmp_path / "wrong.npz").write_text("hello")
    assert "not a file of demonstrations" in refusal(
        imitation_config(tmp_path, tmp_path / "wrong.npz")
    )


def test_a_missing_model_is_refused(tmp_path: Path):
    said = refusal(training_config(tmp_path, tmp_path / "nothing"))
    assert "model.path = " in said
    assert "there is no robot policy: name a run of imitation" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"ranks": 2}, "training.ranks = 2: a robot policy is small: train it with 1 rank"),
        ({"device": "cuda"}, "training.device = 'cuda': a robot policy trains on the processor"),
        ({"dtype": "bfloat16"}, "training.dtype = 'bfloat16': a robot policy is small"),
        ({"lora": {"rank": 8}}, "training.lora.rank = 8: a robot policy has no adapters"),
    ],
)
def test_what_a_robot_policy_cannot_do_is_refused_before_the_run(
    model: Path, tmp_path: Path, training: dict[str, Any], said: str
):
    assert refusal(training_config(tmp_path, model, training=training)).startswith(said)
    assert not (tmp_path / "run").exists()


def test_point_clouds_are_refused_in_runs(model: Path, tmp_path: Path):
    sections = imitation_config(tmp_path, write_demonstrations(tmp_path))
    sections["policy"]["network"] = "points"
    said = refusal(sections)
    assert "policy.network = 'points'" in said
    assert "rollart_robot.imitation" in said


def test_an_unknown_task_is_refused(model: Path, tmp_path: Path):
    sections = training_config(tmp_path, model, task={"options": {"task": "pick-plaice"}})
    assert "did you mean 'pick-place'" in refusal(sections)


def test_an_unknown_option_has_the_nearest_key(tmp_path: Path, model: Path):
    sections = training_config(tmp_path, model)
    sections["policy"]["spred"] = 0.1
    with pytest.raises(ConfigError, match=r"policy\.spred.*spread"):
        rollart.load_config(sections)
