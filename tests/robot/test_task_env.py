"""A robot task as an environment of a run: its resets, its rewards and its faults."""

import time
from typing import Any

import numpy as np
import pytest

from rollart.errors import ConfigError, UserError
from rollart_robot.task_env import RobotTaskEnv
from rollart_robot.tasks import reset_seeds
from rollart_robot.toy_env import ToyExpert, ToyReach

TRAIN, TEST = {"split": "train"}, {"split": "test"}


def expert_chunk(expert: ToyExpert, state: Any, length: int) -> np.ndarray:
    """Return what the expert does next, `length` times the same."""
    return np.stack([expert.act(state)] * length)


def test_members_of_a_group_get_the_same_reset():
    first, second = RobotTaskEnv(task="toy-reach"), RobotTaskEnv(task="toy-reach", slot=3)
    state, _ = first.reset(7, TRAIN)
    assert state.shape == (1, 6)
    assert np.array_equal(state, second.reset(7, TRAIN)[0])
    assert not np.array_equal(state, second.reset(8, TRAIN)[0])


def test_held_out_resets_are_never_trained_on_nor_demonstrated(monkeypatch: pytest.MonkeyPatch):
    used = list[int]()
    reset = ToyReach.reset

    def noted(self: ToyReach, seed: int) -> Any:
        used.append(seed)
        return reset(self, seed)

    monkeypatch.setattr(ToyReach, "reset", noted)
    env = RobotTaskEnv(task="toy-reach")

    def seeds(task: dict[str, str]) -> set[int]:
        used.clear()
        for seed in range(300):
            env.reset(seed, task)
        return set(used)

    training, evaluation = seeds(TRAIN), seeds(TEST)
    demonstrations = set(reset_seeds("demonstrations", seed=0, count=300))
    assert len(training) == len(evaluation) == 300
    assert not training & evaluation
    assert not demonstrations & (training | evaluation)
    # Whole ranges, so no choice of seeds brings them together.
    assert max(training) < min(evaluation)


def test_a_success_pays_one_and_ends_the_episode_within_its_chunk():
    env = RobotTaskEnv(task="toy-reach")
    expert = ToyExpert()
    states, _ = env.reset(7, TRAIN)
    expert.reset(7)
    total, is_over, lengths = 0.0, False, list[int]()
    while not is_over:
        states, reward, is_over, truncated, info = env.step(expert_chunk(expert, states[-1], 2))
        lengths.append(len(states))
        total += reward
        assert not truncated
        assert info["success"] == is_over
    assert total == 1.0
    assert set(lengths[:-1]) == {2}


def test_dense_rewards_are_the_simulators_own_as_well():
    plain, dense = RobotTaskEnv(task="toy-reach"), RobotTaskEnv(task="toy-reach", reward="dense")
    chunk = np.tile([0.0, 1.0], (3, 1))
    for env in (plain, dense):
        env.reset(7, TRAIN)
    assert plain.step(chunk)[1] == 0.0
    assert dense.step(chunk)[1] == pytest.approx(0.24, abs=0.03)


def test_an_episode_of_full_length_is_truncated():
    env = RobotTaskEnv(task="toy-reach")
    env.reset(7, TRAIN)
    outcomes = [env.step(np.zeros((3, 2))) for _ in range(20)]
    assert [each[3] for each in outcomes] == [False] * 19 + [True]
    assert not any(each[2] for each in outcomes)


def test_a_slow_slot_answers_late():
    env = RobotTaskEnv(task="toy-reach", slot=1, slow_slots={"1": 0.02})
    env.reset(7, TRAIN)
    start = time.monotonic()
    env.step(np.zeros((3, 2)))
    assert time.monotonic() - start >= 0.06


def test_bad_options_are_one_message_each():
    with pytest.raises(UserError, match="'toy-reachh' does not exist; did you mean 'toy-reach'"):
        RobotTaskEnv(task="toy-reachh")
    with pytest.raises(ConfigError, match='must be "success", "dense" or "progress"'):
        RobotTaskEnv(task="toy-reach", reward="often")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="only Meta-World's rewards have a known range"):
        RobotTaskEnv(task="toy-reach", reward="progress")


def test_progress_pays_the_best_step_so_far_and_one_in_all_for_a_success():
    pytest.importorskip("metaworld")
    env = RobotTaskEnv(task="reach", reward="progress")
    env.reset(7, TRAIN)
    paid = [env._pay(reward, is_won=False) for reward in (2.0, 1.0, 4.0, -3.0, 90.0)]
    assert paid == pytest.approx([0.1, 0.0, 0.1, 0.0, 0.3])
    assert env._pay(10.0, is_won=True) == pytest.approx(0.5)
    env.reset(7, TRAIN)
    gained = sum(env.step(np.zeros((3, 4)))[1] for _ in range(4))
    assert 0 < gained < 0.5
