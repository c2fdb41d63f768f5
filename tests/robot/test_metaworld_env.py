"""Meta-World itself; all of it within a minute."""

import os
import subprocess
import sys
import time
from ctypes.util import find_library
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rollart_robot.envs import make_env
from rollart_robot.episodes import play_episodes
from rollart_robot.experts import collect, make_expert
from rollart_robot.rendering import record, save_film
from rollart_robot.tasks import available_tasks, evaluation_seeds

pytest.importorskip("metaworld")
from metaworld.sawyer_xyz_env import SawyerXYZEnv

from rollart_robot.metaworld_env import MetaWorldEnv

draws = pytest.mark.skipif(find_library("EGL") is None, reason="no EGL: apt-get install libegl1")


@pytest.mark.parametrize("task", ["reach", "pick-place", "door-lock"])
def test_the_same_seed_is_the_same_episode_whatever_was_played_before(task: str):
    used, fresh = make_env(task), make_env(task)
    used.reset(1)
    for action in np.random.default_rng(0).uniform(-1, 1, (30, 4)):
        used.step(action)
    # Meta-World draws from numpy's global generator unless it is kept from it.
    np.random.seed(9)
    assert used.reset(11).tolist() == fresh.reset(11).tolist()
    for action in np.random.default_rng(1).uniform(-1, 1, (30, 4)):
        one, other = used.step(action), fresh.step(action)
        assert one[0].tolist() == other[0].tolist()
        assert one[1:] == other[1:]


@pytest.mark.parametrize("task", ["reach", "pick-place", "door-lock"])
def test_other_seeds_are_other_resets(task: str):
    env = make_env(task)
    resets = {tuple(env.reset(seed)) for seed in evaluation_seeds(0, 20)}
    assert len(resets) == 20


def test_the_goal_is_seen_and_stays_where_it_is():
    env = make_env("pick-place")
    goals = [env.reset(seed)[-3:] for seed in (1, 2)]
    assert goals[0].tolist() != goals[1].tolist()
    assert (np.abs(goals) > 0).all()
    assert env.step(np.zeros(4))[0][-3:].tolist() == goals[1].tolist()
    assert (env.state_size, env.action_size, env.robot_size) == (21, 4, 4)


def test_the_gripper_touches_what_it_touches_in_meta_world():
    env = MetaWorldEnv("pick-place")
    inner, expert = env._env, make_expert(env)
    state = env.reset(7)
    expert.reset(7)
    answers = list[bool]()
    for _ in range(60):
        state = env.step(expert.act(state))[0]
        number = inner._get_id_main_object()
        answers.append(inner.touching_object(number))
        assert SawyerXYZEnv.touching_object(inner, number) == answers[-1]
    assert set(answers) == {False, True}


def test_an_episode_is_truncated_after_200_steps():
    env = make_env("reach")
    env.reset(1)
    truncated = [env.step(np.zeros(4))[3] for _ in range(200)]
    assert truncated == [False] * 199 + [True]


@pytest.mark.parametrize("task", ["reach", "pick-place"])
def test_the_expert_gives_as_many_demonstrations_as_asked(task: str):
    found = collect(task, 3, seed=0)
    assert len(found.episodes) == 3
    for episode in found.episodes:
        assert episode.success
        assert episode.states.shape == (len(episode), 21)
        assert np.abs(episode.actions).max() <= 1
        assert 10 < len(episode) < 200


def test_every_task_has_an_environment_and_an_expert():
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    from metaworld.policies import ENV_POLICY_MAP

    names = {f"{task.name}-v3" for task in available_tasks() if task.suite == "metaworld"}
    assert names == set(ALL_V3_ENVIRONMENTS) == set(ENV_POLICY_MAP)


def test_many_environments_of_a_task_are_built_quickly():
    make_env("reach")
    began = time.perf_counter()
    envs = [make_env("reach") for _ in range(5)]
    assert (time.perf_counter() - began) / len(envs) < 1.0


def test_the_policy_plays_many_resets_with_one_evaluation_for_all():
    env = make_env("button-press")
    expert = make_expert(env)

    def act(states: np.ndarray, noise: np.ndarray, points: None = None) -> np.ndarray:
        actions = list[np.ndarray]()
        for history in states:
            now, before = history[-1], history[-2]
            env.observation = np.concatenate([now[:18], before[:18], now[18:]])
            actions.append(expert.act(now))
        return np.repeat(np.stack(actions)[:, None], noise.shape[1], axis=1)

    results = play_episodes(act, "button-press", evaluation_seeds(0, 8))
    assert results.successes.all()
    assert results.evaluations == -(-int(results.lengths.max()) // 3)


@draws
def test_a_scene_is_drawn_and_measured(tmp_path: Path):
    env = make_env("pick-place")
    state = env.reset(3)
    picture = env.render(160, 120)
    assert picture.shape == (120, 160, 3)
    assert picture.std() > 20
    points = env.points(512)
    assert points.shape == (512, 3)
    # Points are in the world: some lie on the object and on the hand.
    for place in (state[4:7], state[:3]):
        assert np.linalg.norm(points - place, axis=1).min() < 0.06
    assert points[:, 2].min() > 0
    env.reset(4)
    assert points.tolist() != env.points(512).tolist()
    env.reset(3)
    assert points.tolist() == env.points(512).tolist()
    env.close()


@draws
def test_points_come_with_the_robots_own_state():
    [episode] = collect("reach", 1, seed=0, points=64).episodes
    assert episode.points is not None
    assert episode.points.shape == (len(episode), 64, 3)
    assert episode.states.shape == (len(episode), 4)


@draws
def test_a_film_of_the_robot_is_written(tmp_path: Path):
    [recording] = record(lambda s, e: np.sign(e), "reach", [3], size=(96, 72), every=50)
    assert not recording.success
    save_film(tmp_path / "play.gif", recording.frames)
    with Image.open(tmp_path / "play.gif") as film:
        assert (film.n_frames, film.size) == (5, (96, 72))


@pytest.mark.parametrize(
    "variable", ["PYOPENGL_PLATFORM=osmesa", "__EGL_VENDOR_LIBRARY_DIRS=/nowhere"]
)
def test_without_egl_a_message_says_what_to_install_and_states_still_work(variable: str):
    code = (
        "from rollart.errors import UserError\nfrom rollart_robot.envs import make_env\n"
        "env = make_env('reach'); print(env.reset(1).shape)\n"
        "for draw in (env.render, env.points):\n"
        "    try:\n        draw()\n    except UserError as error:\n        print(error)"
    )
    environment = {**os.environ, **dict([variable.split("=")])}
    environment.pop("MUJOCO_GL", None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    first, *messages = done.stdout.splitlines()
    assert first == "(21,)"
    assert len(messages) == 2
    for message in messages:
        assert "cannot draw a MuJoCo scene (MUJOCO_GL=egl)" in message
        assert "apt-get install libegl1" in message
        assert "set MUJOCO_GL=egl" in message
    assert done.stderr == ""
