"""Samples: trajectories written as readable text files, one file per trajectory."""

import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import assert_never

from rollart.errors import StorageError
from rollart.types import ArraySteps, Payload, TokenTurns, Trajectory, TrajectoryId

_INDENT = "    "
Parts = Mapping[str, float]


def render_trajectory(trajectory: Trajectory, parts: Parts | None = None) -> str:
    """Return a trajectory as text: observation, action and reward of each turn."""
    task = trajectory.task
    unit = "tokens" if isinstance(trajectory.payload, TokenTurns) else "steps"
    outcome = "succeeded" if trajectory.success else "did not succeed"
    head = (
        f"trajectory {trajectory.id} of group {trajectory.group}: {outcome}\n"
        f"task {task.id} ({task.env}, seed {task.seed})  reward {trajectory.reward:g}  "
        f"stop {trajectory.stop}  {len(trajectory.payload)} turns  "
        f"{trajectory.cost} {unit}  {_versions(trajectory)}"
    )
    if parts:
        head += "\nreward parts: " + "  ".join(f"{name} {each:g}" for name, each in parts.items())
    return "\n\n".join([head, *_turns(trajectory.payload)]) + "\n"


def _turns(payload: Payload) -> list[str]:
    match payload:
        case TokenTurns(turns=turns):
            return [
                f"turn {number}\n{textwrap.indent(turn.observation, _INDENT)}\n"
                f"> {turn.action!r}   reward {turn.reward:g}, {len(turn.tokens)} tokens"
                for number, turn in enumerate(turns, start=1)
            ]
        case ArraySteps(rewards=rewards):
            return [f"step {n}   reward {reward:g}" for n, reward in enumerate(rewards, start=1)]
        case _:
            assert_never(payload)


def write_samples(
    directory: Path,
    trajectories: Iterable[Trajectory],
    *,
    step: int,
    parts_of: Callable[[TrajectoryId], Parts] | None = None,
) -> tuple[Path, ...]:
    """Write trajectories of one step as `step-000012-3456.txt`; return the files."""
    paths: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for trajectory in trajectories:
            path = directory / f"step-{step:06d}-{trajectory.id}.txt"
            parts = None if parts_of is None else parts_of(trajectory.id)
            path.write_text(render_trajectory(trajectory, parts), encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise StorageError(f"{directory}: samples cannot be written: {error}") from error
    return tuple(paths)


def _versions(trajectory: Trajectory) -> str:
    payload = trajectory.payload
    versions = (
        [version for turn in payload.turns for version in turn.versions]
        if isinstance(payload, TokenTurns)
        else payload.versions
    )
    if not versions:
        return "no tokens"
    low, high = min(versions), max(versions)
    return f"weights {low}" if low == high else f"weights {low} to {high}"
