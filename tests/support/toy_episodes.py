"""Demonstrations that need no simulator, in the shape of `rollart_robot`'s episodes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class ToyEpisode:
    states: NDArray[np.float32]
    actions: NDArray[np.float32]
    points: NDArray[np.float32] | None = None


def numbered(length: int) -> ToyEpisode:
    """An episode whose rows are their own number."""
    rows = np.arange(length, dtype=np.float32)[:, None]
    return ToyEpisode(states=rows, actions=10 * rows)


def random_episodes(
    count: int = 3, *, length: int = 12, points: int = 0, seed: int = 0
) -> list[ToyEpisode]:
    """Episodes of 3 numbers of state, 2 of action and, if asked for, a cloud of points."""
    random = np.random.default_rng(seed)
    return [
        ToyEpisode(
            states=random.normal(size=(length, 3)).astype(np.float32),
            actions=random.uniform(-1, 1, size=(length, 2)).astype(np.float32),
            points=random.normal(size=(length, points, 3)).astype(np.float32) if points else None,
        )
        for _ in range(count)
    ]


def draws_around(modes: NDArray[np.floating], *, count: int = 2000) -> ToyEpisode:
    """Actions drawn around modes in equal shares, with a state that says nothing."""
    random = np.random.default_rng(0)
    centres = modes[np.arange(count) % len(modes)]
    actions = centres + 0.05 * random.normal(size=centres.shape)
    return ToyEpisode(
        states=np.zeros((count, 1), dtype=np.float32), actions=actions.astype(np.float32)
    )
