"""Self-imitation: successes become windows as demonstrations do, and a resume repeats it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robot_runs import some_groups, write_model

from rollart.types import ArraySteps, Trajectory
from rollart_robot.demonstrations import ExpertEpisode
from rollart_robot.imitation import Windows
from rollart_robot.options import GenerativeOptions
from rollart_robot.runtime import load_policy
from rollart_robot.self_imitation import SelfImitation, success_windows
from rollart_robot.trainer import RobotTrainer, encode

OPTIONS = GenerativeOptions()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("own"))


def one_group(*rewards: float) -> list[list[Trajectory]]:
    return some_groups(rewards=(rewards,))


def test_windows_are_those_of_a_demonstration_that_did_the_same():
    (group,) = one_group(1.0)
    (member,) = group
    steps = member.payload
    assert isinstance(steps, ArraySteps)
    count = int(np.sum(np.asarray(steps.latents["carried"])))  # 3 + 1
    done = np.asarray(steps.actions).reshape(-1, 2)[:count]
    # A demonstration with these actions; its states are not what is compared.
    shown = ExpertEpisode(states=np.zeros((count, 6), np.float32), actions=done)
    windows = Windows([shown], OPTIONS)
    found = success_windows(encode([group]), OPTIONS)
    assert found is not None
    # The policy was asked at steps 0 and 3.
    expected = windows.take(torch.tensor([0, 3])).actions
    assert torch.equal(found.actions, expected)
    assert torch.equal(found.states, torch.from_numpy(np.asarray(steps.observations["states"])))


def test_successes_of_hard_resets_are_drawn_more_often():
    batch = encode(some_groups(rewards=((1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0))))
    found = success_windows(batch, OPTIONS)
    assert found is not None
    chunks = [2, 2, 3, 4, 5]
    weights = [0.85, 0.1, 0.1, 0.1, 0.1]
    assert found.weights.tolist() == pytest.approx(np.repeat(weights, chunks).tolist())


def test_without_a_success_nothing_is_learned(model: Path):
    policy = load_policy(model).requires_grad_(True)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    own = SelfImitation(policy, updates=3, learning_rate=1e-3)
    assert own.learn(encode(one_group(0.0, 0.0)), seed=1) == {}
    assert success_windows(encode(one_group(0.0, 0.0)), OPTIONS) is None
    after = policy.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_the_policy_comes_to_do_what_succeeded(model: Path):
    policy = load_policy(model).requires_grad_(True)
    (group,) = one_group(1.0, 0.0)
    batch = encode([group])
    found = success_windows(batch, policy.options)
    assert found is not None
    noise = torch.randn(200, 4, 2, generator=torch.Generator().manual_seed(3))

    def miss() -> float:
        states = found.states[:1].expand(200, -1, -1)
        with torch.no_grad():
            return float((policy.mean(states, noise) - found.actions[:1]).square().mean())

    before = miss()
    own = SelfImitation(policy, updates=60, learning_rate=3e-3)
    losses = [own.learn(batch, seed=step) for step in range(3)]
    assert miss() < before / 3
    assert losses[-1]["self_imitation_loss"] < losses[0]["self_imitation_loss"]


def test_a_loss_that_is_not_finite_changes_no_weight(model: Path):
    policy = load_policy(model).requires_grad_(True)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    batch = encode(one_group(1.0, 0.0))
    batch["actions"][0, 0, 0] = np.nan
    assert SelfImitation(policy, updates=3, learning_rate=1e-3).learn(batch, seed=1) == {}
    after = policy.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_successes_and_demonstrations_are_remembered(model: Path):
    policy = load_policy(model).requires_grad_(True)
    shown = ExpertEpisode(
        states=np.zeros((5, 6), np.float32), actions=np.full((5, 2), 0.25, np.float32)
    )
    own = SelfImitation(policy, updates=1, learning_rate=1e-3, shown=[shown])
    sizes = [own.learn(encode(one_group(1.0, 0.0)), seed=step) for step in range(2)]
    assert [each["self_imitation_windows"] for each in sizes] == [2, 4]
    assert own._shown is not None
    assert own._shown.weights.tolist() == pytest.approx([1 / 3] * 5)
    # A batch without a success is one to learn from what is remembered.
    assert own.learn(encode(one_group(0.0, 0.0)), seed=3)["self_imitation_windows"] == 4
    restored = policy.actions.restore(own._shown.actions)
    assert restored.numpy() == pytest.approx(np.full((5, 4, 2), 0.25), abs=1e-6)


def test_the_oldest_attempts_are_forgotten(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollart_robot.self_imitation._MEMORY", 3)
    own = SelfImitation(load_policy(model).requires_grad_(True), updates=1, learning_rate=1e-3)
    first, second = encode(one_group(1.0, 0.0)), encode(one_group(1.0, 0.0))
    second["states"] = second["states"] + 1
    own.learn(first, seed=0)
    assert own.learn(second, seed=1)["self_imitation_windows"] == 3
    assert own._memory is not None
    expected = np.concatenate([first["states"][1:2], second["states"][:2]])
    assert np.array_equal(own._memory.states.numpy(), expected)


def test_the_weights_are_the_mean_of_the_later_updates(model: Path):
    batch = encode(one_group(1.0, 0.0))
    passed = list[list[torch.Tensor]]()
    for updates in (1, 2):
        policy = load_policy(model).requires_grad_(True)
        SelfImitation(policy, updates=updates, learning_rate=1e-2).learn(batch, seed=4)
        passed.append([each.detach() for each in policy.parameters()])
    # One update of two is the later half: the second weights are those after update 2 alone.
    policy = load_policy(model).requires_grad_(True)
    own = SelfImitation(policy, updates=4, learning_rate=1e-2)
    kept = list[list[torch.Tensor]]()
    own._optimizer.register_step_post_hook(
        lambda *_: kept.append([each.detach().clone() for each in policy.parameters()])
    )
    own.learn(batch, seed=4)
    for index, each in enumerate(policy.parameters()):
        assert torch.allclose(each, (kept[2][index] + kept[3][index]) / 2, atol=1e-7)
        assert torch.equal(kept[0][index], passed[0][index])


def make(model: Path, **policy: Any) -> RobotTrainer:
    settings = {"spread": 2.0, "anchor": 0.5, "self_imitation": 4, **policy}
    return RobotTrainer(model=str(model), options={"learning_rate": 1e-3}, policy=settings)


def test_a_resumed_trainer_imitates_itself_to_the_bit(model: Path, tmp_path: Path):
    batch = encode(some_groups())
    whole = make(model)
    whole.step(batch)
    whole.save(str(tmp_path / "saved"))
    resumed = make(model)
    assert resumed.load(str(tmp_path / "saved")) == 1
    assert whole.step(batch) == resumed.step(batch)
    states = [trainer._policy.state_dict() for trainer in (whole, resumed)]
    assert all(torch.equal(states[1][name], value) for name, value in states[0].items())


def test_equal_rewards_teach_by_imitation_alone(model: Path):
    groups = [[replace(each, reward=1.0, success=True) for each in one_group(1.0, 1.0)[0]]]
    metrics = make(model).step(encode(groups)).metrics
    assert (metrics["updates"], metrics["no_signal"]) == (0.0, 1.0)
    assert metrics["self_imitation_loss"] > 0
    assert "self_imitation_loss" not in make(model, self_imitation=0).step(encode(groups)).metrics
