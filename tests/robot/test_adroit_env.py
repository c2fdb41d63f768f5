"""Adroit with the experts beside the project, which the project does not ship."""

from pathlib import Path

import numpy as np
import pytest
from robot_parts import adroit_experts

from rollart.errors import UserError
from rollart_robot.envs import make_env
from rollart_robot.experts import collect, make_expert
from rollart_robot.tasks import evaluation_seeds

pytest.importorskip("gymnasium_robotics")
TASKS = ("door", "hammer", "pen", "relocate")


@pytest.fixture
def experts() -> Path:
    found = adroit_experts()
    if found is None:
        pytest.skip("no expert weights: set ROLLART_ADROIT_EXPERTS to their folder")
    return found


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_is_the_same_reset_and_others_differ(name: str):
    used, fresh = make_env(f"adroit-{name}"), make_env(f"adroit-{name}")
    used.reset(1)
    for action in np.random.default_rng(0).uniform(-1, 1, (20, used.action_size)):
        used.step(action)
    assert used.reset(11).tolist() == fresh.reset(11).tolist()
    for action in np.random.default_rng(1).uniform(-1, 1, (20, used.action_size)):
        assert used.step(action)[0].tolist() == fresh.step(action)[0].tolist()
    assert len({tuple(used.reset(seed)) for seed in evaluation_seeds(0, 10)}) == 10


@pytest.mark.parametrize("name", TASKS)
def test_the_expert_gives_demonstrations(name: str, experts: Path):
    found = collect(f"adroit-{name}", 2, seed=0, expert=experts / f"{name}.npz")
    env = make_env(f"adroit-{name}")
    assert [episode.success for episode in found.episodes] == [True, True]
    assert (found.state_size, found.action_size) == (env.state_size, env.action_size)


def test_the_expert_of_another_task_is_refused(experts: Path):
    with pytest.raises(
        UserError, match=r"pen.npz: layer0 wants 45 numbers, but the states have 39"
    ):
        make_expert(make_env("adroit-door"), experts / "pen.npz")


def test_without_a_file_there_is_no_expert():
    with pytest.raises(UserError, match="adroit-door has no scripted expert: give a file"):
        collect("adroit-door", 2, seed=0)
