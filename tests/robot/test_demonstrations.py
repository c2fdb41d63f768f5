import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from robot_parts import equal, some_demonstrations

from rollart.errors import UserError
from rollart_robot.demonstrations import (
    Demonstrations,
    ExpertEpisode,
    load_demonstrations,
    save_demonstrations,
)


def fail(text: str) -> None:
    raise AssertionError(text)


def with_episode(index: int, **changes: object) -> Demonstrations:
    found = some_demonstrations()
    episodes = list(found.episodes)
    episodes[index] = replace(episodes[index], **changes)
    return replace(found, episodes=tuple(episodes))


def save_unchecked(path: Path, found: Demonstrations, **more: np.ndarray) -> Path:
    arrays = {
        "states": np.concatenate([episode.states for episode in found.episodes]),
        "actions": np.concatenate([episode.actions for episode in found.episodes]),
        "episode_ends": np.cumsum([len(episode) for episode in found.episodes]),
        **more,
    }
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


@pytest.mark.parametrize("ending", ["npz", "hdf5", "h5"])
@pytest.mark.parametrize("points", [0, 7])
def test_what_is_saved_is_loaded(tmp_path: Path, ending: str, points: int):
    if ending != "npz":
        pytest.importorskip("h5py")
    found = some_demonstrations(lengths=(6, 9, *[4] * 10), points=points)
    path = tmp_path / "new" / f"demos.{ending}"
    save_demonstrations(found, path)
    assert equal(load_demonstrations(path, horizon=4, warn=fail), found)


def test_saving_twice_writes_the_same_bytes(tmp_path: Path):
    for name in ("a.npz", "b.npz"):
        save_demonstrations(some_demonstrations(), tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_lerobot_keys_are_read(tmp_path: Path):
    found = some_demonstrations()
    np.savez(
        tmp_path / "lerobot.npz",
        **{
            "observation.state": np.concatenate([e.states for e in found.episodes]),
            "action": np.concatenate([e.actions for e in found.episodes]),
            "episode_index": np.repeat([0, 1], [6, 9]),
        },
    )
    read = load_demonstrations(tmp_path / "lerobot.npz")
    assert [len(episode) for episode in read.episodes] == [6, 9]
    assert read.episodes[1].states.tolist() == found.episodes[1].states.tolist()
    assert read.episodes[0].seed == -1


def test_robomimic_files_are_read_in_the_order_of_their_numbers(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    random = np.random.default_rng(0)
    with h5py.File(tmp_path / "low_dim.hdf5", "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Lift"})
        for index in range(11):
            group = file.create_group(f"data/demo_{index}")
            group["actions"] = np.full((4, 2), index) + random.random((4, 2))
            group["obs/robot0_eef_pos"] = random.random((4, 3))
            group["obs/object"] = np.full((4, 1), index)
            group["obs/agentview_image"] = np.zeros((4, 8, 8, 3), dtype=np.uint8)
    read = load_demonstrations(tmp_path / "low_dim.hdf5")
    assert read.task == "Lift"
    assert read.state_size == 4
    assert [episode.states[0, 0] for episode in read.episodes] == list(range(11))


def test_lerobot_keys_are_read_from_hdf5(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    found = some_demonstrations()
    with h5py.File(tmp_path / "lerobot.h5", "w") as file:
        file["observation.state"] = np.concatenate([e.states for e in found.episodes])
        file["action"] = np.concatenate([e.actions for e in found.episodes])
        file["episode_index"] = np.repeat([0, 1], [6, 9])
    read = load_demonstrations(tmp_path / "lerobot.h5")
    assert [len(episode) for episode in read.episodes] == [6, 9]


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).random(shape).astype(np.float32)


WRONG = {
    "no episodes": (
        Demonstrations(task="reach", episodes=()),
        "has no episodes; record at least two",
    ),
    "one episode": (
        some_demonstrations(lengths=(6,)),
        "has one episode, in which .* never vary.*record at least two",
    ),
    "flat states": (
        with_episode(1, states=rows(9)),
        r"episode 1: states have shape \[9\]; must be \[T, S\]",
    ),
    "points in a plane": (
        with_episode(0, points=rows(6, 8, 2)),
        r"episode 0: points have shape \[6, 8, 2\]; must be \[T, N, 3\]",
    ),
    "a state too many": (
        with_episode(1, states=rows(10, 3)),
        "episode 1: 10 states but 9 actions; .*leave out the state after the last",
    ),
    "NaN": (
        with_episode(1, actions=np.where(np.arange(18).reshape(9, 2) == 7, np.nan, rows(9, 2))),
        "episode 1: actions has NaN or infinity in row 3; remove the episode",
    ),
    "too short": (
        some_demonstrations(lengths=(6, 3)),
        "episode 1: has 3 steps, fewer than the 4 actions .*; remove it, or set a shorter horizon",
    ),
    "another robot": (
        with_episode(1, states=rows(9, 5)),
        r"episode 1: states are \[5\], in episode 0 \[3\]; record all episodes with the same",
    ),
    "some with points": (
        with_episode(1, points=rows(9, 8, 3)),
        r"episode 1: points are \[8, 3\], in episode 0 None",
    ),
    "one action": (
        Demonstrations(
            task="",
            episodes=(ExpertEpisode(states=rows(6, 3), actions=np.ones((6, 2), np.float32)),) * 2,
        ),
        "all actions are the same",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_demonstrations_are_refused_with_one_message(name: str):
    from rollart_robot.demonstrations import check_demonstrations

    found, message = WRONG[name]
    with pytest.raises(UserError, match=f"^my.npz: {message}") as caught:
        check_demonstrations(found, source="my.npz", horizon=4)
    assert "\n" not in str(caught.value)


def test_constant_dimensions_are_a_warning(tmp_path: Path):
    found = some_demonstrations()
    for episode in found.episodes:
        episode.states[:, 0] = 0.0
        episode.states[:, 2] = 0.25
    save_demonstrations(found, tmp_path / "demos.npz")
    notes = list[str]()
    load_demonstrations(tmp_path / "demos.npz", warn=notes.append)
    [note] = notes
    assert "demos.npz: dimensions 2 of the states never change" in note
    with pytest.warns(UserWarning, match="dimensions 2 of the states"):
        load_demonstrations(tmp_path / "demos.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": None}, "has no 'states', but actions, episode_ends"),
        ({"episode_ends": None}, "has neither 'episode_ends' nor 'episode_index'"),
        (
            {"episode_ends": np.array([6, 12])},
            r"'episode_ends' is \[6, 12\]; it must rise to the 15",
        ),
        ({"episode_ends": np.array([6, 6, 15])}, r"'episode_ends' is \[6, 6, 15\]"),
        ({"seeds": np.array([1])}, "1 seeds for 2 episodes"),
        ({"states": rows(14, 3)}, "14 states but 15 actions"),
        ({"actions": np.array([{}] * 15, dtype=object)}, "not a file of demonstrations.*pickle"),
    ],
)
def test_a_file_with_wrong_arrays_is_refused(tmp_path: Path, changes: dict, message: str):
    path = save_unchecked(tmp_path / "demos.npz", some_demonstrations(), **changes)
    with pytest.raises(UserError, match=message):
        load_demonstrations(path)


@pytest.mark.parametrize("name", ["demos.npz", "demos.hdf5"])
@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and then nothing"])
def test_a_file_that_is_not_one_is_refused(tmp_path: Path, name: str, content: bytes):
    if name.endswith("hdf5"):
        pytest.importorskip("h5py")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}: not a file of demonstrations .*; it must be"):
        load_demonstrations(tmp_path / name)


def test_an_array_without_a_name_is_refused(tmp_path: Path):
    np.save(tmp_path / "demos.npy", rows(3, 2))
    with pytest.raises(UserError, match="not a file of demonstrations"):
        load_demonstrations(tmp_path / "demos.npy")


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UserError, match="there is no such file"):
        load_demonstrations(tmp_path / "demos.npz")


def test_an_unknown_ending_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"demos.csv: demonstrations are .npz, .hdf5 or .h5 files"):
        save_demonstrations(some_demonstrations(), tmp_path / "demos.csv")
