"""One contract suite over every shipped environment."""

import asyncio
import json

import pytest

from rollart.envs.registry import load_env_class, make_env
from rollart.envs.trial import NoisyPlayer, Play, RandomPlayer, play
from rollart.plugins import BUILT_IN
from rollart.rollout.env_contract import check_reset, check_step

CASES = [
    ("frozen_lake", {}, 20),
    ("frozen_lake", {"view": "map"}, 20),
    ("frozen_lake", {"view": "local", "size": 5}, 30),
    ("frozen_lake", {"size": 2, "holes": 1}, 10),
    ("frozen_lake", {"size": 9}, 60),
    ("calculator", {}, 4),
    ("calculator", {"terms": 4, "digits": 3, "words": False, "max_turns": 2}, 2),
    ("number_guess", {}, 4),
]
cases = pytest.mark.parametrize(("name", "options", "max_turns"), CASES)


def episode(name, options, max_turns, *, player, seed) -> Play:
    env = make_env(name, options=options)
    return asyncio.run(play(env, player, seed=seed, max_turns=max_turns))


def test_every_shipped_environment_is_in_the_suite():
    assert {name for name, _, _ in CASES} == set(BUILT_IN["env"])


@cases
def test_the_same_seed_gives_the_same_world(name, options, max_turns):
    first, again = (
        [
            episode(name, options, max_turns, player=NoisyPlayer(noise=0.5), seed=seed)
            for seed in range(20)
        ]
        for _ in range(2)
    )
    assert first == again
    assert len({record.observations for record in first}) > 1


@cases
def test_a_used_environment_is_as_good_as_a_new_one(name, options, max_turns):
    used = make_env(name, options=options)
    for seed in range(5):
        record = asyncio.run(play(used, RandomPlayer(), seed=seed, max_turns=max_turns))
        fresh = episode(name, options, max_turns, player=RandomPlayer(), seed=seed)
        assert record == fresh


@cases
def test_the_suggested_actions_succeed(name, options, max_turns):
    for seed in range(50):
        record = episode(name, options, max_turns, player=NoisyPlayer(noise=0.0), seed=seed)
        assert (record.success, record.stop, sum(record.rewards)) == (True, "terminated", 1.0)


@cases
def test_rubbish_is_told_not_raised_and_spends_the_turn(name, options, max_turns):
    env = make_env(name, options=options)
    first, _ = env.reset(3, {})
    told, reward, terminated, _, info = check_step(env.step("\x00 ¿dónde? " * 50))
    assert (reward, terminated, info["success"]) == (0.0, False, False)
    assert told not in ("", first)


@cases
def test_info_can_be_written_as_json_and_names_actions_and_success(name, options, max_turns):
    env = make_env(name, options=options)
    _, info = check_reset(env.reset(1, {}))
    *_, later = check_step(env.step(env.suggest()))
    for each in (info, later):
        assert json.loads(json.dumps(each)) == each
        assert set(each) - {"problem", "split"} == {"actions", "success"}
        assert isinstance(each["actions"], list)
        assert isinstance(each["success"], bool)
    assert isinstance(info["problem"], str)
    assert info["split"] in ("train", "test", "none")


@pytest.mark.parametrize("name", BUILT_IN["env"])
def test_the_class_says_how_to_play_and_that_it_never_blocks(name):
    env_class = load_env_class(name)
    assert env_class.system_prompt
    assert env_class.inline is True
