"""Samples: trajectories as text a person can read."""

import textwrap
from collections.abc import Iterable
from pathlib import Path

from rollart.errors import StorageError
from rollart.types import Trajectory

_INDENT = "    "


def render_trajectory(trajectory: Trajectory) -> str:
    """Return a trajectory as text: what the agent saw, did and got, turn by turn."""
    task = trajectory.task
    outcome = "succeeded" if trajectory.success else "did not succeed"
    head = (
        f"trajectory {trajectory.id} of group {trajectory.group}: {outcome}\n"
        f"task {task.id} ({task.env}, seed {task.seed})  reward {trajectory.reward:g}  "
        f"stop {trajectory.stop}  {len(trajectory.turns)} turns  "
        f"{trajectory.sampled_tokens} tokens  {_versions(trajectory)}"
    )
    turns = [
        f"turn {number}\n{textwrap.indent(turn.observation, _INDENT)}\n"
        f"> {turn.action!r}   reward {turn.reward:g}, {len(turn.tokens)} tokens"
        for number, turn in enumerate(trajectory.turns, start=1)
    ]
    return "\n\n".join([head, *turns]) + "\n"


def write_samples(
    directory: Path, trajectories: Iterable[Trajectory], *, step: int
) -> tuple[Path, ...]:
    """Write trajectories of one step as `step-000012-3456.txt`; return the files."""
    paths: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for trajectory in trajectories:
            path = directory / f"step-{step:06d}-{trajectory.id}.txt"
            path.write_text(render_trajectory(trajectory), encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise StorageError(f"{directory}: samples cannot be written: {error}") from error
    return tuple(paths)


def _versions(trajectory: Trajectory) -> str:
    versions = [version for turn in trajectory.turns for version in turn.versions]
    if not versions:
        return "no tokens"
    low, high = min(versions), max(versions)
    return f"weights {low}" if low == high else f"weights {low} to {high}"
