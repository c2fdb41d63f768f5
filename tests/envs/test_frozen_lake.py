import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.control.task_order import TaskKind, TaskMix
from rollart.envs.frozen_lake import FrozenLake
from rollart.envs.trial import NoisyPlayer, play
from rollart.errors import ConfigError, EnvError

LAKE = TaskKind(name="lake", domain="lake")


def test_the_opening_names_holes_goal_and_place_and_later_turns_only_the_place():
    env = FrozenLake(holes=3)
    opening, info = env.reset(6, {})
    assert opening == "holes c1 c3 b4 goal d4\na1"
    assert env.drawing() == "@.#.\n....\n..#.\n.#.*"
    assert info == {
        "actions": ["down", "right"],
        "success": False,
        "problem": "4: c1 c3 b4",
        "split": "train",
    }
    assert env.step("down") == (
        "a2",
        0.0,
        False,
        False,
        {"actions": ["up", "down", "right"], "success": False},
    )


def test_the_map_is_drawn_once():
    env = FrozenLake(holes=3, view="map")
    assert env.reset(6, {})[0] == "@.#.\n....\n..#.\n.#.*\na1"
    assert env.step("right")[0] == "b1"


def test_the_local_view_tells_only_the_holes_next_to_the_player():
    env = FrozenLake(holes=3, view="local")
    assert env.reset(6, {})[0] == "goal d4\na1 holes none"
    assert env.step("right")[0] == "b1 holes right"


def test_falling_in_ends_the_episode_without_reward():
    env = FrozenLake(holes=3)
    env.reset(6, {})
    env.step("right")
    observation, reward, terminated, truncated, info = env.step("right")
    assert (observation, reward, terminated, truncated) == ("fell in", 0.0, True, False)
    assert info["success"] is False


def test_reaching_the_goal_pays_one():
    env = FrozenLake(holes=3)
    env.reset(6, {})
    for move in ("down", "right", "right", "right", "down"):
        assert env.step(move)[2] is False
    assert env.step("down")[:4] == ("goal", 1.0, True, False)


def test_illegal_moves_are_told_and_leave_the_player_where_it_is():
    env = FrozenLake(holes=3)
    env.reset(6, {})
    assert env.step("fly")[:4] == ("illegal\na1", 0.0, False, False)
    assert env.step("up")[:4] == ("edge\na1", 0.0, False, False)
    assert env.step("  DOWN ")[0] == "a2"


def test_a_task_may_name_another_size_for_one_episode():
    env = FrozenLake(holes=3)
    small = env.reset(6, {})[0]
    assert len(env.drawing()) == 19
    env.reset(6, {"size": 6, "holes": 3})
    assert env.drawing().count("\n") == 5
    assert env.drawing().count("#") == 3
    assert env.reset(6, {})[0] == small


@settings(deadline=None)
@given(seed=st.integers(0, 2**63 - 1), size=st.integers(2, 9), data=st.data())
def test_every_lake_has_its_holes_and_a_safe_path(seed, size, data):
    holes = data.draw(st.integers(0, (size - 1) ** 2))
    env = FrozenLake(size=size, holes=holes)
    env.reset(seed, {})
    assert env.drawing().count("#") == holes
    record = asyncio.run(play(env, NoisyPlayer(noise=0.0), seed=seed, max_turns=size * size))
    assert record.success


def test_a_slippery_lake_moves_sideways_about_two_times_of_three_and_never_back():
    places = []
    for seed in range(600):
        env = FrozenLake(size=9, holes=0, slippery=True)
        env.reset(seed, {})
        places.append(env.step("down")[0])
    counts = {place: places.count(place) for place in sorted(set(places))}
    assert set(counts) == {"a2", "b1", "edge\na1"}
    assert all(150 < count < 250 for count in counts.values())


def test_no_suggestion_is_left_at_the_goal():
    env = FrozenLake(size=2, holes=0)
    env.reset(0, {})
    env.step("down")
    env.step("right")
    with pytest.raises(EnvError, match="after the episode ended"):
        env.suggest()


@pytest.mark.parametrize(
    ("options", "field", "fix"),
    [
        ({"size": 1}, "env.options.size", "must be a whole number from 2 to 9"),
        ({"size": "big"}, "env.options.size", "must be a whole number from 2 to 9"),
        ({"holes": 10}, "env.options.holes", "must be a whole number from 0 to 9 for size 4"),
        ({"slippery": "no"}, "env.options.slippery", "must be true or false"),
        ({"view": "radar"}, "env.options.view", "must be one of"),
    ],
)
def test_wrong_options_name_the_field_and_the_fix(options, field, fix):
    with pytest.raises(ConfigError) as caught:
        FrozenLake(**options)
    assert caught.value.field == field
    assert caught.value.fix.startswith(fix)


def test_no_lake_of_an_evaluation_is_met_in_training():
    env = FrozenLake()
    trained = {env.reset(seed, {"split": "train"})[0] for seed in range(3000)}
    tested = {env.reset(seed, {"split": "test"})[0] for seed in range(200)}
    assert len(tested) > 100
    assert not trained & tested


def test_an_evaluation_poses_a_different_lake_at_every_index_and_none_of_training():
    env = FrozenLake()
    tasks = [TaskMix([LAKE], seed=1, split="test").task(i) for i in range(200)]
    tested = [env.reset(task.seed, task.payload)[0] for task in tasks]
    trained = {env.reset(seed, {"split": "train", "index": seed})[0] for seed in range(3000)}
    assert len(set(tested)) == 200
    assert not trained & set(tested)


def test_every_evaluation_poses_the_same_lakes_whatever_its_seed():
    env = FrozenLake()
    first, second = (
        [env.reset(seed + i, {"split": "test", "index": i})[0] for i in range(20)]
        for seed in (0, 1000)
    )
    assert first == second


def test_a_size_with_few_lakes_repeats_them():
    env = FrozenLake(size=3, holes=1)
    posed = [env.reset(i, {"split": "test", "index": i})[0] for i in range(50)]
    assert 1 <= len(set(posed)) < 10


def test_without_a_number_of_holes_lakes_differ_in_how_many_they_have():
    env = FrozenLake()
    counts = {env.reset(seed, {})[0].count(" ") for seed in range(200)}
    assert len(counts) > 4


@pytest.mark.parametrize(("size", "holes"), [(4, 0), (2, 0), (9, 0), (3, 4)])
def test_lakes_too_few_to_divide_are_called_so_in_every_split(size, holes):
    env = FrozenLake(size=size, holes=holes)
    for split in ("train", "test"):
        infos = [env.reset(i, {"split": split, "index": i})[1] for i in range(30)]
        splits = {info["split"] for info in infos}
        problems = {info["problem"] for info in infos}
        assert (splits == {"none"}) == (len(problems) == 1 and holes == 0)
        assert splits in ({"none"}, {split})


def test_a_lake_says_which_split_it_is_of():
    env = FrozenLake()
    for split in ("train", "test"):
        infos = [env.reset(i, {"split": split, "index": i})[1] for i in range(50)]
        assert {info["split"] for info in infos} == {split}
