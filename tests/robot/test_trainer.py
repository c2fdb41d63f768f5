"""Reinforcement learning of a robot policy: one step against plain Python, and resuming."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robot_runs import some_groups, write_model

from rollart.errors import ConfigError, UserError
from rollart.types import StepReport, TokenBatch
from rollart_robot.runtime import load_policy
from rollart_robot.trainer import RobotTrainer, encode

SPREAD = 2.0
RATE = 1e-3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("trainer"))


def make(model: Path, **changes: Any) -> RobotTrainer:
    options = {"learning_rate": RATE, "max_grad_norm": 0.0} | changes.pop("options", {})
    policy = {"spread": SPREAD, "anchor": 0.5}
    return RobotTrainer(model=str(model), options=options, policy=policy, **changes)


def weights_of(trainer: RobotTrainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer._policy.state_dict().items()}


def plain_loss(model: Path, groups: list[Any], *, correction: str) -> float:
    """GRPO's loss over chunks, written out with plain numbers."""
    policy = load_policy(model)
    losses = list[float]()
    for group in groups:
        rewards = [each.reward for each in group]
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
        for member in group:
            advantage = (member.reward - mean) / (deviation + 1e-6)
            steps = member.payload
            states = torch.from_numpy(steps.observations["states"])
            means = policy.mean(states, torch.from_numpy(steps.latents["noise"]))
            for index, behaviour in enumerate(steps.logprobs.tolist()):
                logprob = 0.0
                # Of the chunk's actions, 1, 2 and 3 are carried out until the episode ends.
                for row in range(int(steps.latents["carried"][index])):
                    for column in range(2):
                        miss = float(steps.actions[index, row, column])
                        miss -= float(means[index, 1 + row, column])
                        logprob -= miss**2 / (2 * SPREAD**2)
                        logprob -= math.log(SPREAD) + 0.5 * math.log(2 * math.pi)
                if correction == "decoupled":
                    ratio, weight = 1.0, min(math.exp(logprob - behaviour), 2.0)
                else:
                    ratio, weight = math.exp(logprob - behaviour), 1.0
                clipped = min(max(ratio, 0.8), 1.28)
                losses.append(-weight * min(ratio * advantage, clipped * advantage))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("correction", ["decoupled", "none"])
def test_a_step_has_the_loss_of_grpo_written_out(model: Path, correction: str):
    groups = some_groups()
    trainer = make(model, algorithm={"type": "grpo", "correction": correction})
    report = trainer.step(encode(groups))
    expected = plain_loss(model, groups, correction=correction)
    assert abs(expected) > 1e-3
    assert report.metrics["loss"] == pytest.approx(expected, abs=1e-6)
    assert report.metrics["anchor_distance"] == 0.0
    assert (report.version, report.metrics["updates"]) == (1, 1.0)


def test_what_did_not_reach_the_robot_has_no_gradient(model: Path):
    batch = encode(some_groups())
    changed = dict(batch)
    changed["actions"] = batch["actions"].copy()
    changed["actions"][batch["carried"] == 1, 1:] += 5.0
    one, other = make(model), make(model)
    assert one.step(batch) == other.step(changed)
    moved, same = weights_of(one), weights_of(other)
    assert all(torch.equal(moved[name], value) for name, value in same.items())


def test_constant_dimensions_of_actions_have_no_likelihood(model: Path):
    trainer, batch = make(model), encode(some_groups())
    for policy in (trainer._policy, trainer._reference):
        policy.actions.gain[1] = 0.0
    changed = {**batch, "actions": batch["actions"] + np.array([0.0, 3.0], np.float32)}
    _, _, scores = trainer._judge(batch)
    _, _, others = trainer._judge(changed)
    assert torch.equal(scores["proximal"], others["proximal"])


def test_trajectories_without_a_signal_count_in_the_mean(model: Path):
    groups = some_groups()
    idle = [replace(each, reward=1.0) for each in groups[0]]
    report = make(model).step(encode([*groups, idle]))
    expected = plain_loss(model, [*groups, idle], correction="decoupled")
    assert report.metrics["loss"] == pytest.approx(expected, abs=1e-6)
    alone = plain_loss(model, groups, correction="decoupled")
    assert abs(alone) > 1.2 * abs(expected)


def test_another_spread_is_refused_on_a_resume(model: Path, tmp_path: Path):
    make(model).save(str(tmp_path))
    other = RobotTrainer(model=str(model), policy={"spread": SPREAD + 1})
    with pytest.raises(ConfigError, match=r"policy\.spread = 3\.0: .* played with 2\.0: use that"):
        other.load(str(tmp_path))


def test_a_step_moves_the_weights_along_the_gradient_of_loss_and_anchor(model: Path):
    groups = some_groups()
    trainer = make(model)
    trainer.step(encode(groups))
    before = weights_of(trainer)
    trainer.step(encode(groups))

    probe = make(model)
    probe._policy.load_state_dict(before)
    batch = {name: torch.from_numpy(value) for name, value in encode(groups).items()}
    reference = load_policy(model)
    means = probe._policy.mean(batch["states"], batch["noise"])[:, 1:4]
    anchors = reference.mean(batch["states"], batch["noise"])[:, 1:4]
    counted = (torch.arange(3) < batch["carried"][:, None])[:, :, None]
    misses = (((batch["actions"] - means) ** 2) * counted).sum((1, 2)) / (2 * SPREAD**2)
    size = 2 * batch["carried"]
    logprobs = -misses - size * (math.log(SPREAD) + 0.5 * math.log(2 * math.pi))
    advantage = torch.where(batch["rewards"] > 0, 1.0, -1.0)[batch["owners"]] / (1 + 2e-6)
    weight = (logprobs.detach() - batch["behaviour"]).exp().clamp(max=2.0)
    loss = -(weight * (logprobs - logprobs.detach()).exp() * advantage).mean()
    loss = loss + 0.5 * (((means - anchors) ** 2) * counted).sum() / size.sum()
    loss.backward()
    assert not torch.equal(means, anchors)

    # AdamW's second step, from the gradients of both, for the layer nearest to the actions.
    name, parameter = list(probe._policy.named_parameters())[-1]
    first = make(model)
    first.step(encode(groups))
    moments = first._optimizer.state[dict(first._policy.named_parameters())[name]]
    gradient = parameter.grad
    assert gradient is not None
    average = 0.9 * moments["exp_avg"] + 0.1 * gradient
    square = 0.95 * moments["exp_avg_sq"] + 0.05 * gradient**2
    step = (average / (1 - 0.9**2)) / ((square / (1 - 0.95**2)).sqrt() + 1e-8)
    moved = weights_of(trainer)[name] - before[name]
    assert torch.allclose(moved, -RATE * step, atol=1e-6)


def test_equal_rewards_change_no_weight_and_advance_the_version(model: Path):
    trainer = make(model)
    before = weights_of(trainer)
    report = trainer.step(encode(some_groups(rewards=((1.0, 1.0), (0.0, 0.0)))))
    assert (report.version, report.metrics["updates"], report.metrics["no_signal"]) == (1, 0, 1)
    after = weights_of(trainer)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_weight_decay_shrinks_matrices_alone(model: Path):
    options = {"weight_decay": 0.5, "learning_rate": 1e-2}
    plain, shrunk = make(model, options={"learning_rate": 1e-2}), make(model, options=options)
    before = dict(plain._policy.named_parameters())["network.leave.weight"].detach().clone()
    for trainer in (plain, shrunk):
        trainer.step(encode(some_groups()))
    one, other = weights_of(plain), weights_of(shrunk)
    assert torch.equal(one["network.leave.bias"], other["network.leave.bias"])
    moved = other["network.leave.weight"] - one["network.leave.weight"]
    assert torch.allclose(moved, -1e-2 * 0.5 * before, atol=1e-6)


def test_a_divergence_counts_where_rewards_are_equal(model: Path):
    trainer = make(model, algorithm={"type": "grpo", "kl_coefficient": 0.1})
    report = trainer.step(encode(some_groups(rewards=((1.0, 1.0), (0.0, 1.0)))))
    assert report.metrics["updates"] == 1.0
    # The mean of the log-ratio's clip is over both groups: 10 chunks, of which 5 have a signal.
    assert report.metrics["clip_fraction"] == 0.0


class WithColumn:
    """Weighs the first chunk of each attempt alone."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.seen = list[torch.Tensor]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def columns(self, batch: TokenBatch, advantages: Any) -> dict[str, Any]:
        del advantages
        return {"is_first": np.r_[1.0, np.diff(batch.owners) != 0]}

    def loss(self, terms: Any) -> Any:
        self.seen.append(terms.columns["is_first"])
        return self._inner.loss(terms)


def test_an_algorithm_gets_the_columns_that_it_computed(model: Path):
    trainer = make(model)
    trainer._algorithm = WithColumn(trainer._algorithm)
    trainer.step(encode(some_groups()))
    assert trainer._algorithm.seen[0].tolist() == [1, 0, 1, 0, 0, 1, 0, 1, 0, 0]


def test_a_loss_that_is_not_finite_is_refused_whole(model: Path):
    trainer = make(model)
    batch = encode(some_groups())
    batch["actions"][0, 0, 0] = np.nan
    before = weights_of(trainer)
    report = trainer.step(batch)
    assert (report.version, report.metrics["updates"], report.metrics["skipped"]) == (1, 0, 1)
    after = weights_of(trainer)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_resumed_trainer_continues_to_the_bit(model: Path, tmp_path: Path):
    options = {"minibatches": 2, "epochs": 2, "warmup_steps": 3}
    batch = encode(some_groups())
    whole = make(model, options=options)
    whole.step(batch)
    whole.save(str(tmp_path / "saved"))
    resumed = make(model, options=options)
    assert resumed.load(str(tmp_path / "saved")) == 1

    def continued(trainer: RobotTrainer) -> StepReport:
        trainer.step(batch)
        return trainer.step(batch)

    assert continued(whole) == continued(resumed)
    expected, found = weights_of(whole), weights_of(resumed)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_checkpoint_is_a_model_directory(model: Path, tmp_path: Path):
    trainer = make(model)
    trainer.step(encode(some_groups()))
    trainer.save(str(tmp_path / "saved"))
    expected, found = weights_of(trainer), load_policy(tmp_path / "saved").state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_wrong_checkpoint_is_one_message(model: Path, tmp_path: Path):
    with pytest.raises(UserError, match="not a checkpoint of this robot policy"):
        make(model).load(str(tmp_path))


def test_several_ranks_are_refused(model: Path):
    with pytest.raises(ConfigError, match=r"training\.ranks = 2.*train it with 1 rank"):
        make(model, world_size=2)
