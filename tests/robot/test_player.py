"""The player: what it records is what the trainer computes again."""

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robot_runs import trajectory, write_model

from rollart.types import (
    ArraySteps,
    AttemptSpec,
    EpisodeLimits,
    GroupId,
    Played,
    ResidentPolicy,
    Sampling,
    StepOutcome,
    Task,
    TrajectoryId,
    Version,
)
from rollart_robot.player import RobotPlayer, counted_numbers, log_density
from rollart_robot.runtime import RobotActor, load_policy
from rollart_robot.task_env import RobotTaskEnv
from rollart_robot.trainer import RobotTrainer, encode

SPREAD = 0.12


class Attempt:
    """An attempt at toy-reach without a run around it."""

    def __init__(
        self,
        model: Path,
        *,
        seed: int,
        split: str = "train",
        turns: int = 40,
        ends_in: int | None = None,
    ) -> None:
        """Take a model; in chunk `ends_in`, the first action ends the episode."""
        task = Task(id=3, env="reach", domain="reach", seed=11, payload={"split": split})
        self.spec = AttemptSpec(
            id=TrajectoryId(1),
            group=GroupId(1),
            task=task,
            system="",
            limits=EpisodeLimits(max_turns=turns),
            sampling=Sampling(),
            seed=seed,
        )
        self.costs = list[tuple[int, int]]()
        self._ends_in = ends_in
        self._env = RobotTaskEnv(task="toy-reach")
        self._actor = RobotActor(load_policy(model), spread=SPREAD)

    async def reset(self) -> tuple[Any, dict[str, Any]]:
        return self._env.reset(self.spec.task.seed, self.spec.task.payload)

    async def policy(self) -> ResidentPolicy:
        return ResidentPolicy(version=Version(4), policy=self._actor)

    async def step(self, action: Any) -> StepOutcome:
        is_last = len(self.costs) - 1 == self._ends_in
        states, reward, terminated, truncated, info = self._env.step(action[: 1 if is_last else 3])
        return StepOutcome(
            observation=states,
            reward=reward,
            terminated=terminated or is_last,
            truncated=truncated,
            success=info["success"],
        )

    def note_action(self, version: Version, *, cost: int) -> None:
        self.costs.append((version, cost))


def play(model: Path, **changes: Any) -> tuple[Played, ArraySteps]:
    played = asyncio.run(RobotPlayer().play(Attempt(model, **changes)))  # type: ignore[arg-type]
    assert isinstance(played.payload, ArraySteps)
    return played, played.payload


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("player"))


def test_the_log_density_of_a_chunk_is_the_sum_over_its_numbers():
    random = np.random.default_rng(0)
    actions, means = random.standard_normal((2, 5, 3, 2))

    def one(action: float, mean: float) -> float:
        return -((action - mean) ** 2) / (2 * SPREAD**2) - math.log(SPREAD * math.sqrt(2 * math.pi))

    expected = [
        sum(one(a, m) for a, m in zip(action.flat, mean.flat, strict=True))
        for action, mean in zip(actions, means, strict=True)
    ]
    everything = np.ones(actions.shape, bool)
    assert log_density(actions, means, SPREAD, everything) == pytest.approx(expected, abs=1e-6)
    tensors = (torch.from_numpy(each) for each in (actions, means))
    found = log_density(*tensors, SPREAD, torch.from_numpy(everything))
    assert found.numpy() == pytest.approx(expected, abs=1e-6)


def test_actions_that_were_not_carried_out_and_constant_dimensions_do_not_count():
    counted = counted_numbers(np.array([3, 1]), torch.tensor([2.0, 0.0]), 3)
    assert counted.tolist() == [[[True, False]] * 3, [[True, False]] + [[False, False]] * 2]
    actions, means = np.random.default_rng(0).standard_normal((2, 2, 3, 2))
    found = log_density(actions, means, SPREAD, counted)
    part = [
        log_density(a[None, :count, :1], m[None, :count, :1], SPREAD, np.ones((1, count, 1), bool))
        for a, m, count in zip(actions, means, (3, 1), strict=True)
    ]
    assert found == pytest.approx(np.concatenate(part))


def test_the_recorded_log_probs_are_those_of_the_trainer_at_the_same_weights(model: Path):
    members = [play(model, seed=seed, ends_in=4 if seed else None) for seed in range(3)]
    assert members[1][1].latents["carried"].tolist() == [3, 3, 3, 3, 1]
    groups = [
        [
            trajectory(i, group=0, reward=float(i), steps=steps)
            for i, (_, steps) in enumerate(members)
        ]
    ]
    trainer = RobotTrainer(model=str(model), policy={"spread": SPREAD, "anchor": 0.0})
    batch = encode(groups)
    _, _, scores = trainer._judge(batch)
    assert scores["proximal"].numpy() == pytest.approx(batch["behaviour"], abs=1e-5)

    metrics = trainer.step(batch).metrics
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["correction_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["clip_fraction"] == 0.0


def test_an_attempt_is_a_function_of_its_seed_and_explores(model: Path):
    _, first = play(model, seed=5)
    _, again = play(model, seed=5)
    _, other = play(model, seed=6)
    assert first == again
    assert first != other
    # The same task: members of a group start from the same state.
    starts = [steps.observations["states"][0] for steps in (first, other)]
    assert np.array_equal(*starts)


def test_held_out_attempts_take_the_mean(model: Path):
    _, steps = play(model, seed=5, split="test")
    policy = load_policy(model)
    states, noise = (
        torch.from_numpy(np.asarray(each))
        for each in (steps.observations["states"], steps.latents["noise"])
    )
    means = policy.mean(states, noise)[:, policy.options.executed].numpy()
    assert np.asarray(steps.actions) == pytest.approx(means, abs=1e-5)


def test_observations_are_the_latest_states_and_every_chunk_is_counted(model: Path):
    attempt = Attempt(model, seed=1, turns=3)
    played = asyncio.run(RobotPlayer().play(attempt))  # type: ignore[arg-type]
    steps = played.payload
    assert isinstance(steps, ArraySteps)
    assert (played.stop, len(steps)) == ("max_turns", 3)
    assert attempt.costs == [(4, 3)] * 3
    states = np.asarray(steps.observations["states"])
    assert states.shape == (3, 2, 6)
    assert np.array_equal(states[0, 0], states[0, 1])
    assert np.asarray(steps.actions).shape == (3, 3, 2)
    assert np.asarray(steps.latents["noise"]).shape == (3, 4, 2)
