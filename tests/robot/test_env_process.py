"""Environments in child processes: the same episodes, faults apart, and no child left."""

import threading
import time

import numpy as np
import pytest

from rollart.errors import ConfigError, EnvError, UserError
from rollart_robot import env_process
from rollart_robot.env_process import RemoteTaskEnv, end_children
from rollart_robot.task_env import RobotTaskEnv

TRAIN = {"split": "train"}


@pytest.fixture(autouse=True, scope="module")
def _ends():
    yield
    end_children()
    assert not env_process._children


def test_an_episode_is_the_same_in_a_process_of_its_own():
    here = RobotTaskEnv(task="toy-reach", reward="dense")
    there = RobotTaskEnv(task="toy-reach", reward="dense", processes=2, slot=3)
    for one, other in zip(here.reset(7, TRAIN), there.reset(7, TRAIN), strict=True):
        assert np.array_equal(one, other)
    for action in np.random.default_rng(0).uniform(-1, 1, (20, 3, 2)):
        one, other = here.step(action), there.step(action)
        assert np.array_equal(one[0], other[0])
        assert one[1:] == other[1:]
    there.close()
    assert list(env_process._children) == [1]


def test_one_that_hangs_holds_up_no_other_of_its_process():
    faults = {"hung_slots": [1]}
    hung = RobotTaskEnv(task="toy-reach", processes=1, slot=1, **faults)  # type: ignore[arg-type]
    other = RobotTaskEnv(task="toy-reach", processes=1, slot=2, **faults)  # type: ignore[arg-type]
    hung.reset(7, TRAIN)
    threading.Thread(target=_fails, args=(hung,), daemon=True).start()
    other.reset(7, TRAIN)
    assert other.step(np.zeros((3, 2)))[0].shape == (3, 6)


def _fails(env: RobotTaskEnv) -> None:
    with pytest.raises(EnvError):
        env.step(np.zeros((3, 2)))


def test_what_is_raised_there_is_raised_here():
    env = RobotTaskEnv(task="toy-reach", processes=2, slot=1)
    env.reset(7, TRAIN)
    with pytest.raises(EnvError, match=r"action has shape \(5,\): must be \(2,\)"):
        env.step(np.zeros((3, 5)))
    assert env.step(np.zeros((3, 2)))[0].shape == (3, 6)
    with pytest.raises(UserError, match="'toy-reachh' does not exist"):
        RemoteTaskEnv(child=1, options={"task": "toy-reachh"})
    with pytest.raises(ConfigError, match=r"processes = -1: must be at least 0"):
        RobotTaskEnv(task="toy-reach", processes=-1)


def test_a_child_that_died_fails_its_environments_and_is_replaced():
    env = RobotTaskEnv(task="toy-reach", processes=2, slot=1)
    env.reset(7, TRAIN)
    child = env_process._children[1]
    child.process.kill()
    child.process.wait()
    with pytest.raises(EnvError, match="the process of the environment ended"):
        env.step(np.zeros((3, 2)))
    again = RobotTaskEnv(task="toy-reach", processes=2, slot=1)
    assert again.reset(7, TRAIN)[0].shape == (1, 6)
    assert env_process._children[1] is not child


def test_children_end_with_their_input():
    RobotTaskEnv(task="toy-reach", processes=2, slot=1).reset(7, TRAIN)
    child = env_process._children[1]
    start = time.monotonic()
    end_children()
    assert child.process.poll() == 0
    assert time.monotonic() - start < 5.0
