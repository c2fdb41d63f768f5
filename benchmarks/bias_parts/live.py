"""One live run: real controller, engine and trainer, with environments that take a while.

An episode has six turns and takes a lognormal time (sigma = 1, half of the variance by task), which
is also its reward. How long every episode will take is noted when it starts, whether or not it is
trained, so the mean that a rule trains is compared with the mean of the very same draws.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, sqrt
from random import Random
from statistics import fmean

from benchmarks.live_runs.timed import lake_config, run_live
from rollart.events import Train, TrajectoryFinished
from rollart.seeds import derive_seed
from rollart.types import Json

MEAN_S = 0.5
TURNS = 6
_SPREAD = sqrt(0.5)
_PLAYED: list[float] = []
"""Seconds of every episode that was started in this process."""


class LongErrand:
    """An episode that takes a lognormal time and pays as much."""

    system_prompt = "Go on"

    def __init__(self) -> None:
        self._random = Random()
        self._left = 0
        self._seconds = 0.0

    async def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Draw how long the episode is, and note it."""
        del task
        shared = Random(derive_seed(seed, 1)).gauss(0.0, _SPREAD)
        self._seconds = MEAN_S * exp(shared + self._random.gauss(0.0, _SPREAD) - 0.5)
        self._left = TURNS
        _PLAYED.append(self._seconds)
        return "go", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        """Do something that takes a while."""
        del action
        await asyncio.sleep(self._seconds / TURNS)
        self._left -= 1
        is_last = self._left == 0
        return "go", self._seconds if is_last else 0.0, is_last, False, {"success": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFigures:
    """What a live run trained.

    Example: `LiveFigures(length_ratio=0.99, trained_per_s=24.1, oldest=4)`
    """

    length_ratio: float
    trained_per_s: float
    oldest: int
    """The greatest age in any batch."""


def measure(*, steps: int, at_bound: str | None = None) -> LiveFigures:
    """Train with a rule at the staleness bound, by default the default one."""
    config = lake_config(
        "run.mode=rollart",
        f"run.steps={steps}",
        "run.environments=64",
        "staleness.alpha=1",
        "staleness.patience_s=1.0",
        "batching.groups_per_step=8",
        "batching.group_size=4",
        "sampling.max_tokens=1",
        f"tasks.lake.max_turns={TURNS}",
        *([] if at_bound is None else [f"staleness.at_bound={at_bound}"]),
    )
    errands = replace(config.tasks["lake"], env="benchmarks.bias_parts.live:LongErrand", options={})
    _PLAYED.clear()
    timed = run_live(replace(config, tasks={"lake": errands}))
    seconds = {
        record.event.info.id: record.event.info.reward or 0.0
        for record in timed.records
        if isinstance(record.event, TrajectoryFinished)
    }
    trains = [c for record in timed.records for c in record.commands if isinstance(c, Train)]
    trained = [seconds[id_] for train in trains for group in train.groups for id_ in group]
    return LiveFigures(
        length_ratio=fmean(trained) / fmean(_PLAYED),
        trained_per_s=timed.trained_per_s_of_all,
        oldest=max(train.staleness for train in trains),
    )
