from pathlib import Path

import numpy as np
import pytest

from rollart.errors import UserError
from rollart_robot.envs import make_env
from rollart_robot.experts import NetworkExpert, collect, make_expert
from rollart_robot.tasks import evaluation_seeds


def write_expert(path: Path, *, states: int = 6, actions: int = 2, **changes: object) -> Path:
    random = np.random.default_rng(0)
    arrays = {
        "layer0.weight": random.normal(size=(8, states)),
        "layer0.bias": np.zeros(8),
        "layer1.weight": random.normal(size=(actions, 8)),
        "layer1.bias": np.zeros(actions),
        "in_shift": np.zeros(states),
        "in_scale": np.ones(states),
        "out_shift": np.zeros(actions),
        "out_scale": np.ones(actions),
        **{key.replace("_dot_", "."): value for key, value in changes.items()},
    }
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def test_the_toy_expert_takes_both_ways_and_always_arrives():
    found = collect("toy-reach", 40, seed=0)
    sides = [
        bool(e.states[np.argmin(np.abs(e.states[:, 1] - e.states[:, 5])), 0] > e.states[0, 4])
        for e in found.episodes
    ]
    assert 8 < sum(sides) < 32
    assert all(episode.success for episode in found.episodes)
    assert found.task == "toy-reach"
    assert (found.state_size, found.action_size) == (6, 2)


def test_demonstrations_are_the_same_for_the_same_seed_and_apart_from_evaluations():
    one, same, other = (collect("toy-reach", 5, seed=seed) for seed in (3, 3, 4))
    assert [e.actions.tolist() for e in one.episodes] == [e.actions.tolist() for e in same.episodes]
    assert one.episodes[0].actions.tolist() != other.episodes[0].actions.tolist()
    used = {episode.seed for found in (one, other) for episode in found.episodes}
    assert len(used) == 10
    assert not used & {s for seed in range(20) for s in evaluation_seeds(seed, 200)}


def test_noise_is_carried_out_but_not_recorded():
    [episode] = collect("toy-reach", 1, seed=0, noise=0.3).episodes
    expert = make_expert(make_env("toy-reach"))
    expert.reset(episode.seed)
    assert [expert.act(state).tolist() for state in episode.states] == episode.actions.tolist()
    moved = np.diff(episode.states[:, :2], axis=0) / 0.08
    assert np.abs(moved - episode.actions[:-1]).max() > 0.1


def test_failures_are_drawn_again_and_counted(tmp_path: Path):
    tries = list[tuple[int, int]]()
    weights = write_expert(tmp_path / "bad.npz", out_scale=np.zeros(2))
    with pytest.raises(
        UserError, match=r"toy-reach: the expert succeeded in 0 of 20 tries, and 3 .* better expert"
    ):
        collect("toy-reach", 3, seed=0, expert=weights, progress=lambda *n: tries.append(n))
    assert tries == [(0, count) for count in range(1, 21)]


def test_a_network_expert_computes_what_its_layout_says(tmp_path: Path):
    path = write_expert(tmp_path / "expert.npz", in_shift=np.full(6, 0.5), out_shift=np.ones(2) / 4)
    arrays = np.load(path)
    state = np.random.default_rng(2).normal(size=6).astype(np.float32)
    x = (state - 0.5) / (1 + 1e-8)
    expected = arrays["layer1.weight"] @ np.tanh(arrays["layer0.weight"] @ x) + 0.25
    expert = NetworkExpert.load(path, state_size=6, action_size=2)
    assert np.allclose(expert.act(state), np.clip(expected, -1, 1), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_scale": None}, "not a file of expert weights: it has no in_scale; it must be"),
        ({"layer0_dot_weight": None}, "it has no layer0.weight"),
        ({"layer1_dot_bias": np.zeros(3)}, r"layer1 is \(2, 8\) with \(3,\)"),
        (
            {"layer1_dot_weight": np.zeros((2, 9))},
            "layer1 wants 9 numbers, but the layer0's outputs",
        ),
        (
            {"states": 5},
            "layer0 wants 5 numbers, but the states have 6; use the expert of this task",
        ),
        ({"actions": 3}, r"out_shift is \(3,\) and the last layer gives 3, .* has \(2,\)"),
        ({"layer0_dot_bias": np.full(8, np.nan)}, "layer0.bias has NaN"),
        ({"layer0_dot_bias": np.array([{}], dtype=object)}, "not a file of expert weights"),
    ],
)
def test_an_expert_file_that_is_not_one_is_refused(tmp_path: Path, changes: dict, message: str):
    path = write_expert(tmp_path / "expert.npz", **changes)
    with pytest.raises(UserError, match=message):
        NetworkExpert.load(path, state_size=6, action_size=2)


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_a_file_that_has_no_arrays_is_refused(tmp_path: Path, content: bytes | None):
    path = tmp_path / "expert.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        UserError, match=r"expert.npz: (not a|there is no such) file of expert weig"
    ):
        NetworkExpert.load(path, state_size=6, action_size=2)


def test_none_is_not_a_number_of_episodes():
    with pytest.raises(UserError, match="episodes = 0: must be at least 1"):
        collect("toy-reach", 0, seed=0)
