"""Means with 95 % intervals, by a bootstrap over runs and the resets they were judged on.

A cell is one run (a task and a seed) and has one value for each reset. A draw takes as many cells
as there are, with replacement, and of each as many resets as it has, with replacement. Two methods
are compared by their differences on the same resets of the same cells, so that a hard reset is
hard for both.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

Cell: TypeAlias = tuple[str, int]
"""A task and the seed of its demonstrations, its training and its resets."""
Cells: TypeAlias = Mapping[Cell, Sequence[float]]
"""For each cell a value for each reset: 1 for a success, or a difference of two."""

DRAWS = 4000


def estimate(cells: Cells, *, scale: float = 1.0, digits: int = 3) -> dict[str, float]:
    """Return the mean of the cells' means with its 95 % interval.

    Example:
        >>> estimate({("reach", 0): [1, 1, 0, 1], ("reach", 1): [1, 0, 0, 1]})
        {'mean': 0.625, 'low': 0.25, 'high': 1.0}

    """
    values = np.array(list(cells.values()), dtype=np.float64)
    count, resets = values.shape
    random = np.random.default_rng(0)
    rows = random.integers(count, size=(DRAWS, count, 1))
    means = values[rows, random.integers(resets, size=(DRAWS, count, resets))].mean(axis=(1, 2))
    low, high = np.percentile(means, (2.5, 97.5))
    return {
        name: round(float(value) * scale, digits)
        for name, value in (("mean", values.mean()), ("low", low), ("high", high))
    }


def difference(one: Cells, other: Cells) -> dict[str, float]:
    """Return how many points `one` succeeds more often than `other` on the same resets.

    Example:
        >>> difference({("reach", 0): [1, 1]}, {("reach", 0): [0, 1]})
        {'mean': 50.0, 'low': 0.0, 'high': 100.0}

    """
    if one.keys() != other.keys():
        raise ValueError(f"not the same runs: {sorted(one)} and {sorted(other)}")
    pairs = {
        cell: [a - b for a, b in zip(values, other[cell], strict=True)]
        for cell, values in one.items()
    }
    return estimate(pairs, scale=100.0, digits=1)


def by_label(cells: Cells, labels: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return an estimate for each label of the tasks, in the order of the cells.

    Example:
        >>> by_label({("reach", 0): [1, 1], ("push", 0): [0, 0]}, {"reach": "easy", "push": "hard"})
        {'easy': {'mean': 1.0, …}, 'hard': {'mean': 0.0, …}}

    """
    names = dict.fromkeys(labels[task] for task, _ in cells)
    return {
        name: estimate({cell: cells[cell] for cell in cells if labels[cell[0]] == name})
        for name in names
    }
