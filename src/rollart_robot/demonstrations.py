"""Demonstrations: episodes of an expert that a policy imitates, and their files.

`states[t]` is what the expert saw, `actions[t]` what it then did. A file is checked when it is read
and has to hold at least two episodes. Two formats, by the ending of the name:

`.npz`, rows of all episodes one after another (read without pickle):
    states        float32 [rows, S]       or `observation.state`, as LeRobot has it
    actions       float32 [rows, A]       or `action`
    episode_ends  int64 [episodes]        index after each episode's last row; or `episode_index`
                                          [rows], the episode's number in each row
    points        float32 [rows, N, 3]    optional; or `observation.points`
    seeds, successes  [episodes]          optional: reset seed (-1: unknown), success (true)
    task          text                    optional

`.hdf5` or `.h5`, as robomimic has it (needs h5py), or with the keys above at the top:
    data/demo_0/actions      [T, A]
    data/demo_0/obs/state    [T, S]; without it, all `[T, n]` arrays of obs joined by name order
    data/demo_0/obs/points   [T, N, 3], optional
    data/demo_0              attributes `seed`, `success`, optional
    data                     attribute `task`, or `env_args` (JSON with `env_name`), optional
"""

import io
import json
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rollart.atomic_files import write_file
from rollart.errors import StorageError, UserError, describe_error
from rollart_robot.envs import Floats

_HDF5 = (".hdf5", ".h5")
_SAME = {"observation.state": "states", "action": "actions", "observation.points": "points"}
"""LeRobot's names of our keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertEpisode:
    """One episode of an expert: `T` states and the action taken in each.

    Example:
        >>> ExpertEpisode(states=states, actions=actions, seed=7, success=True)  # [60, 21], [60, 4]

    """

    states: Floats
    actions: Floats
    points: Floats | None = None
    """Point cloud of each state, `[T, N, 3]`."""
    seed: int = -1
    """Seed of the reset; -1 if unknown."""
    success: bool = True

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Episodes of one task.

    Example:
        >>> Demonstrations(task="pick-place", episodes=(first, second)).state_size
        21

    """

    task: str
    episodes: tuple[ExpertEpisode, ...]

    @property
    def state_size(self) -> int:
        """Numbers in a state."""
        return self.episodes[0].states.shape[1]

    @property
    def action_size(self) -> int:
        """Numbers in an action."""
        return self.episodes[0].actions.shape[1]

    @property
    def rows(self) -> int:
        """Actions in all episodes together."""
        return sum(map(len, self.episodes))


def save_demonstrations(demonstrations: Demonstrations, path: Path) -> None:
    """Write demonstrations as `.npz` or HDF5, by the ending of the name."""
    check_demonstrations(demonstrations, source=str(path))
    content = io.BytesIO()
    if path.suffix.lower() in _HDF5:
        _write_hdf5(demonstrations, content, path)
    elif path.suffix.lower() == ".npz":
        _write_npz(demonstrations, content)
    else:
        raise UserError(f"{path}: demonstrations are .npz, .hdf5 or .h5 files: choose an ending")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content.getbuffer())
    except OSError as error:
        raise StorageError(f"{path}: demonstrations cannot be written: {error}") from error


def load_demonstrations(
    path: Path, *, horizon: int = 1, warn: Callable[[str], None] = warnings.warn
) -> Demonstrations:
    """Read and check demonstrations; UserError says what is wrong with them.

    `horizon`: actions that the policy predicts at a time; no episode may be shorter. `warn` gets
    one line if dimensions of the states never change.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such file of demonstrations")
    try:
        found = (
            _read_hdf5(path) if path.suffix.lower() in _HDF5 else _from_rows(read_npz(path), path)
        )
    except (OSError, ValueError, KeyError) as error:
        fix = "it must be .npz without pickled objects, or HDF5 (.hdf5, .h5)"
        reason = describe_error(error)
        raise UserError(f"{path}: not a file of demonstrations ({reason}); {fix}") from error
    check_demonstrations(found, source=str(path), horizon=horizon)
    constant = constant_dimensions(found)
    if constant:
        warn(
            f"{path}: dimensions {', '.join(map(str, constant))} of the states never change: the "
            "policy learns nothing from them, and is lost where an unseen reset changes them"
        )
    return found


def check_demonstrations(demonstrations: Demonstrations, *, source: str, horizon: int = 1) -> None:
    """Raise UserError if a policy cannot be trained on these; `source` begins the message."""
    episodes = demonstrations.episodes
    if not episodes:
        raise UserError(f"{source}: has no episodes; record at least two")
    for index, episode in enumerate(episodes):
        _check_episode(episode, f"{source}: episode {index}", horizon)
        _check_alike(episode, episodes[0], f"{source}: episode {index}")
    if len(episodes) == 1:
        raise UserError(
            f"{source}: has one episode, in which the positions of object and goal never vary, so "
            "a policy cannot learn to follow them; record at least two, better ten"
        )
    if not np.ptp(np.concatenate([episode.actions for episode in episodes]), axis=0).any():
        raise UserError(f"{source}: all actions are the same; record what the expert does")


def constant_dimensions(demonstrations: Demonstrations) -> tuple[int, ...]:
    """Return which dimensions of the states never change, less those that are 0 (padding)."""
    states = np.concatenate([episode.states for episode in demonstrations.episodes])
    constant = (np.ptp(states, axis=0) == 0) & (states[0] != 0)
    return tuple(int(index) for index in np.flatnonzero(constant))


def _check_episode(episode: ExpertEpisode, where: str, horizon: int) -> None:
    """Check the shapes, length and values of one episode."""
    states, actions, points = episode.states, episode.actions, episode.points
    for name, array, shape in (
        ("states", states, "[T, S]"),
        ("actions", actions, "[T, A]"),
        ("points", points, "[T, N, 3]"),
    ):
        if array is None:
            continue
        is_wrong = array.ndim != len(shape.split(",")) or 0 in array.shape[1:]
        if is_wrong or (name == "points" and array.shape[2] != 3):
            raise UserError(f"{where}: {name} have shape {list(array.shape)}; must be {shape}")
        if len(array) != len(actions):
            raise UserError(
                f"{where}: {len(array)} {name} but {len(actions)} actions; record one action for "
                "each state, and leave out the state after the last action"
            )
        if not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise UserError(
                f"{where}: {name} has NaN or infinity in row {row}; remove the episode, or "
                "record it again"
            )
    if len(actions) < horizon:
        raise UserError(
            f"{where}: has {len(actions)} steps, fewer than the {horizon} actions the policy "
            "predicts at a time; remove it, or set a shorter horizon"
        )


def _check_alike(episode: ExpertEpisode, first: ExpertEpisode, where: str) -> None:
    """Check that an episode has the dimensions of the first."""
    fix = "record all episodes with the same robot, task and camera"
    for name, own, other in (
        ("states", episode.states, first.states),
        ("actions", episode.actions, first.actions),
        ("points", episode.points, first.points),
    ):
        own_shape = None if own is None else list(own.shape[1:])
        other_shape = None if other is None else list(other.shape[1:])
        if own_shape != other_shape:
            raise UserError(f"{where}: {name} are {own_shape}, in episode 0 {other_shape}; {fix}")


def _write_npz(demonstrations: Demonstrations, content: io.BytesIO) -> None:
    episodes = demonstrations.episodes
    arrays: dict[str, npt.NDArray[Any]] = {
        "task": np.array(demonstrations.task),
        "states": np.concatenate([episode.states for episode in episodes]),
        "actions": np.concatenate([episode.actions for episode in episodes]),
        "episode_ends": np.cumsum([len(episode) for episode in episodes]),
        "seeds": np.array([episode.seed for episode in episodes], dtype=np.int64),
        "successes": np.array([episode.success for episode in episodes]),
    }
    points = [episode.points for episode in episodes if episode.points is not None]
    if points:
        arrays["points"] = np.concatenate(points)
    np.savez_compressed(content, allow_pickle=False, **arrays)


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the plain arrays of an `.npz`; ValueError if it is not one, or has other objects."""
    try:
        # Opened here: numpy leaves a file open that is not an archive after all.
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise ValueError("an array without a name: save it with numpy.savez")
            return {key: found[key] for key in found.files}
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(describe_error(error)) from error


def _from_rows(given: Mapping[str, npt.NDArray[Any]], path: Path) -> Demonstrations:
    """Split rows of all episodes into episodes."""
    arrays = {_SAME.get(key, key): value for key, value in given.items()}
    for key in ("states", "actions"):
        if key not in arrays:
            names = ", ".join(sorted(given)) or "nothing"
            raise UserError(
                f"{path}: has no {key!r}, but {names}; see rollart_robot.demonstrations"
            )
    bounds = _bounds(arrays, path)
    seeds = arrays.get("seeds", np.full(len(bounds), -1))
    successes = arrays.get("successes", np.ones(len(bounds), dtype=bool))
    for key, values in (("seeds", seeds), ("successes", successes)):
        if len(values) != len(bounds):
            raise UserError(f"{path}: {len(values)} {key} for {len(bounds)} episodes; need as many")
    points = arrays.get("points")
    return Demonstrations(
        task=str(arrays.get("task", "")),
        episodes=tuple(
            ExpertEpisode(
                states=arrays["states"][start:end].astype(np.float32),
                actions=arrays["actions"][start:end].astype(np.float32),
                points=None if points is None else points[start:end].astype(np.float32),
                seed=int(seed),
                success=bool(success),
            )
            for (start, end), seed, success in zip(bounds, seeds, successes, strict=True)
        ),
    )


def _bounds(arrays: Mapping[str, npt.NDArray[Any]], path: Path) -> list[tuple[int, int]]:
    """Return the first row of each episode and the one after its last."""
    rows = len(arrays["actions"])
    for key in ("states", "points"):
        if key in arrays and len(arrays[key]) != rows:
            raise UserError(f"{path}: {len(arrays[key])} {key} but {rows} actions; need as many")
    if "episode_ends" in arrays:
        ends = [int(end) for end in arrays["episode_ends"]]
    elif "episode_index" in arrays:
        numbers = arrays["episode_index"].ravel()
        if len(numbers) != rows:
            raise UserError(f"{path}: {len(numbers)} of 'episode_index' for {rows} rows")
        ends = [*(int(i) + 1 for i in np.flatnonzero(np.diff(numbers))), *([rows] if rows else [])]
    else:
        raise UserError(
            f"{path}: has neither 'episode_ends' nor 'episode_index', so it is unknown where an "
            "episode ends; add one"
        )
    starts = [0, *ends[:-1]] if ends else []
    if (ends and ends[-1] != rows) or any(a >= b for a, b in zip(starts, ends, strict=True)):
        raise UserError(f"{path}: 'episode_ends' is {ends}; it must rise to the {rows} rows")
    return list(zip(starts, ends, strict=True))


def _write_hdf5(demonstrations: Demonstrations, content: io.BytesIO, path: Path) -> None:
    with _h5py(path).File(content, "w") as file:
        data = file.create_group("data")
        data.attrs["task"] = demonstrations.task
        data.attrs["total"] = demonstrations.rows
        for index, episode in enumerate(demonstrations.episodes):
            group = data.create_group(f"demo_{index}")
            group.attrs["num_samples"] = len(episode)
            group.attrs["seed"] = episode.seed
            group.attrs["success"] = episode.success
            group["actions"] = episode.actions
            group["obs/state"] = episode.states
            if episode.points is not None:
                group["obs/points"] = episode.points


def _read_hdf5(path: Path) -> Demonstrations:
    h5py = _h5py(path)
    with h5py.File(path, "r") as file:
        if "data" not in file:
            arrays = {key: file[key] for key in file if isinstance(file[key], h5py.Dataset)}
            return _from_rows({key: array[()] for key, array in arrays.items()}, path)
        data = file["data"]
        # demo_10 comes after demo_9, not after demo_1.
        names = sorted(data, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
        task = data.attrs.get("task") or json.loads(data.attrs.get("env_args", "{}")).get(
            "env_name"
        )
        return Demonstrations(
            task=str(task or ""),
            episodes=tuple(_read_demo(data[name], f"{path}: {name}") for name in names),
        )


def _read_demo(group: Any, where: str) -> ExpertEpisode:
    if "actions" not in group or "obs" not in group:
        raise UserError(f"{where}: has {', '.join(group) or 'nothing'}; must have actions and obs")
    observed = group["obs"]
    if "state" in observed:
        states = observed["state"][()]
    else:
        flat = [key for key in sorted(observed) if observed[key].ndim == 2]
        if not flat:
            raise UserError(f"{where}: obs has no array [T, n]; add obs/state")
        states = np.concatenate([observed[key][()] for key in flat], axis=1)
    points = observed["points"][()].astype(np.float32) if "points" in observed else None
    return ExpertEpisode(
        states=states.astype(np.float32),
        actions=group["actions"][()].astype(np.float32),
        points=points,
        seed=int(group.attrs.get("seed", -1)),
        success=bool(group.attrs.get("success", True)),
    )


def _h5py(path: Path) -> Any:
    try:
        import h5py  # noqa: PLC0415 for HDF5 files alone
    except ModuleNotFoundError as error:
        fix = "pip install 'rollart[robot]', or use .npz"
        raise UserError(f"{path}: HDF5 files need the package h5py: {fix}") from error
    return h5py
