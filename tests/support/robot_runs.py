"""Small robot policies on toy-reach: demonstrations, a model directory, batches and configs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollart.types import ArraySteps, Task, Trajectory, Version
from rollart_robot.demonstrations import save_demonstrations
from rollart_robot.experts import collect
from rollart_robot.learner import RobotLearner
from rollart_robot.runtime import RobotPolicy

SMALL: dict[str, Any] = {"width": 32, "blocks": 1}
"""Options of a policy that trains in a moment."""


def write_demonstrations(folder: Path, *, episodes: int = 6) -> Path:
    """Record demonstrations of toy-reach."""
    path = folder / "demos.npz"
    save_demonstrations(collect("toy-reach", episodes, seed=0), path)
    return path


def make_learner(demonstrations: Path, *, steps: int = 40) -> RobotLearner:
    """Return a learner that has made no step."""
    return RobotLearner(RobotPolicy(**SMALL), steps=steps, demonstrations=demonstrations)


def write_model(folder: Path, *, steps: int = 40) -> Path:
    """Imitate for a few steps; return the model directory."""
    learner = make_learner(write_demonstrations(folder), steps=steps)
    for _ in range(steps):
        learner.step()
    learner.save(str(folder / "model"))
    return folder / "model"


def trajectory(number: int, *, group: int, reward: float, steps: ArraySteps) -> Trajectory:
    """Return an attempt with this record."""
    return Trajectory(
        id=number,  # type: ignore[arg-type]
        group=group,  # type: ignore[arg-type]
        task=Task(id=group, env="reach", domain="reach", seed=group),
        stop="terminated",
        success=reward > 0,
        reward=reward,
        born=Version(0),
        cost=len(steps),
        payload=steps,
    )


def some_groups(
    *, rewards: Sequence[Sequence[float]] = ((1.0, 0.0), (0.0, 1.0)), chunks: int = 2
) -> list[list[Trajectory]]:
    """Return groups of random attempts; their log-probs are about those of a spread of 2.

    The last chunk of the first member of each group is carried out for one action alone.
    """
    random = np.random.default_rng(7)

    def numbers(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    groups = list[list[Trajectory]]()
    for group, values in enumerate(rewards):
        members = list[Trajectory]()
        for member, reward in enumerate(values):
            count = chunks + member
            carried = np.array([3] * (count - 1) + [3 if member else 1])
            steps = ArraySteps(
                observations={"states": numbers(count, 2, 6)},
                actions=0.5 * numbers(count, 3, 2),
                logprobs=0.3 * numbers(count) - (10 / 3 * carried).astype(np.float32),
                rewards=(0.0,) * (count - 1) + (reward,),
                versions=(Version(0),) * count,
                latents={"noise": numbers(count, 4, 2), "carried": carried},
            )
            number = 10 * group + member
            members.append(trajectory(number, group=group, reward=reward, steps=steps))
        groups.append(members)
    return groups


def imitation_config(folder: Path, demonstrations: Path, **run: Any) -> dict[str, Any]:
    """Return the config of a run of imitation in `folder / "imitation"`."""
    plain = {"directory": str(folder / "imitation"), "pipeline": "imitation", "steps": 60}
    plain |= {"environments": 4, "evaluate_episodes": 4}
    return {
        "run": plain | run,
        "policy": {"type": "robot", "demonstrations": str(demonstrations), **SMALL},
        "engine": {"name": "scripted"},
        "tasks": {"reach": task_section()},
    }


def training_config(folder: Path, model: Path, **sections: Any) -> dict[str, Any]:
    """Return the config of a run of reinforcement learning in `folder / "run"`."""
    run = {"directory": str(folder / "run"), "steps": 2, "environments": 4, "evaluate_episodes": 0}
    return {
        "run": run | sections.pop("run", {}),
        "model": {"path": str(model)},
        "policy": {"type": "robot", "spread": 0.12, "anchor": 0.5},
        "engine": {"name": "scripted"},
        "tasks": {"reach": task_section(**sections.pop("task", {}))},
        "training": {"learning_rate": 3e-5} | sections.pop("training", {}),
        "batching": {"groups_per_step": 2, "group_size": 4},
        **sections,
    }


def task_section(**changes: Any) -> dict[str, Any]:
    """Return the section of toy-reach."""
    options = {"task": "toy-reach"} | changes.pop("options", {})
    return {"env": "robot", "player": "robot", "max_turns": 40, "options": options, **changes}
