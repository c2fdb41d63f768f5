"""What tests of the robot plug-in share: a small set of demonstrations, the experts of Adroit."""

import os
from pathlib import Path

import numpy as np
from checkout import ROOT

from rollart_robot.demonstrations import Demonstrations, ExpertEpisode


def some_demonstrations(*, lengths: tuple[int, ...] = (6, 9), points: int = 0) -> Demonstrations:
    """Return episodes of random numbers with 3-number states and 2-number actions."""
    random = np.random.default_rng(5)

    def numbers(*shape: int) -> np.ndarray:
        return random.uniform(-1, 1, shape).astype(np.float32)

    return Demonstrations(
        task="toy-reach",
        episodes=tuple(
            ExpertEpisode(
                states=numbers(length, 3),
                actions=numbers(length, 2),
                points=numbers(length, points, 3) if points else None,
                seed=100 + index,
                success=index != 1,
            )
            for index, length in enumerate(lengths)
        ),
    )


def equal(one: Demonstrations, other: Demonstrations) -> bool:
    """Say whether two sets of demonstrations are the same in every value."""

    def values(found: Demonstrations) -> list[object]:
        return [
            (found.task, e.seed, e.success, e.states.tolist(), e.actions.tolist())
            + ((None,) if e.points is None else (e.points.tolist(),))
            for e in found.episodes
        ]

    return values(one) == values(other)


def adroit_experts() -> Path | None:
    """Return the folder of Adroit's expert weights, if this machine has it."""
    named = os.environ.get("ROLLART_ADROIT_EXPERTS")
    folders = [Path(named)] if named else [ROOT.parent / "shared" / "adroit"]
    return next((folder for folder in folders if (folder / "door.npz").is_file()), None)
