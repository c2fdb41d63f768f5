import subprocess
import sys

import numpy as np
import pytest

from rollart.errors import EnvError, UserError
from rollart_robot.envs import make_env
from rollart_robot.toy_env import ToyReach


def test_importing_the_interface_loads_no_simulator():
    code = (
        "import sys, rollart_robot.envs, rollart_robot.experts, rollart_robot.demonstrations, "
        "rollart_robot.episodes\n"
        "heavy = ('mujoco', 'metaworld', 'gymnasium', 'h5py', 'torch', 'PIL')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_simulator_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "rollart_robot.metaworld_env", raising=False)
    monkeypatch.setitem(sys.modules, "metaworld", None)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(
        UserError, match=r"reach needs the package \w+: pip install 'rollart\[robot"
    ):
        make_env("reach")


def test_a_wrong_platform_for_drawing_is_explained():
    pytest.importorskip("mujoco")
    code = (
        "import os; os.environ['MUJOCO_GL'] = 'nonsense'\n"
        "from rollart.errors import UserError\nfrom rollart_robot.envs import make_env\n"
        "try:\n    make_env('reach')\nexcept UserError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "MuJoCo cannot be loaded" in done.stdout
    assert "MUJOCO_GL unset" in done.stdout


def test_the_same_seed_is_the_same_toy_and_another_is_another():
    used, fresh = make_env("toy-reach"), ToyReach()
    used.reset(4)
    used.step([1.0, 1.0])
    assert used.reset(3).tolist() == fresh.reset(3).tolist()
    assert used.reset(5).tolist() != fresh.reset(3).tolist()
    assert fresh.reset(3).dtype == np.float32


def test_the_disc_stops_the_point():
    env = ToyReach()
    state = env.reset(3)
    for _ in range(env.max_steps):
        state, _, _, truncated, info = env.step([0.0, 1.0])
    assert truncated
    assert not info["success"]
    assert np.linalg.norm(state[:2] - state[4:]) > 0.35


@pytest.mark.parametrize("action", [[np.nan, 0.0], [0.0]])
def test_an_action_that_is_not_one_is_refused(action: list[float]):
    env = ToyReach()
    env.reset(3)
    with pytest.raises(EnvError, match="action"):
        env.step(action)


def test_actions_are_clipped():
    env, other = ToyReach(), ToyReach()
    env.reset(3)
    other.reset(3)
    assert env.step([9.0, -9.0])[0].tolist() == other.step([1.0, -1.0])[0].tolist()


def test_the_toy_has_a_picture_and_no_points():
    env = ToyReach()
    env.reset(3)
    picture = env.render(64, 48)
    assert picture.shape == (48, 64, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 4
    with pytest.raises(UserError, match="no point cloud"):
        env.points()
