"""Lives: how long groups of a batch take at least, from what each drawn group takes alone."""

from collections.abc import Mapping, Sequence
from math import floor
from typing import TypeAlias

from rollart.planning.demand import Demand

Lives: TypeAlias = Mapping[str, list[float]]
"""Of each task, the least seconds of every group drawn."""


def late_life_s(
    demands: Sequence[Demand], lives: Lives, *, groups: int, extra_groups: int
) -> float:
    """Return a life that some group of a batch of `groups` has at least, on average.

    Of a batch's worth of groups that start together all must complete but as many as there are
    redundant ones. Two more are left out, for the next quickest live a little less on average.
    """
    ranked = sorted(
        (life_s, demand.share / len(lives[demand.task]))
        for demand in demands
        for life_s in lives[demand.task]
    )
    level = 1 - (extra_groups + 2) / groups
    level = level if extra_groups else max(0.5, level)
    reached = 0.0
    for life_s, share in ranked:
        reached += share
        if reached >= level:
            return life_s
    return ranked[-1][0]


def mean_life_s(demands: Sequence[Demand], lives: Lives, *, kept: float) -> float:
    """Return the mean life of groups, the quickest share of each task only."""
    mean_s = 0.0
    for demand in demands:
        quickest = sorted(lives[demand.task])
        quickest = quickest[: max(1, floor(kept * len(quickest)))]
        mean_s += demand.share * sum(quickest) / len(quickest)
    return mean_s
