"""Tasks whose episodes wait for their worlds, and a reward that waits for a judge."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from random import Random

from rollart.types import Json, Trajectory


class Errand:
    """A few turns, each of which takes normal(mean_s, deviation_s); it pays nothing itself."""

    system_prompt = "Go on"

    def __init__(self, *, turns: int, mean_s: float, deviation_s: float) -> None:
        self._turns = turns
        self._mean_s = mean_s
        self._deviation_s = deviation_s
        self._random = Random()
        self._left = 0

    async def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Start an episode, at once."""
        self._left = self._turns
        return "go", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        """Do something that takes a while."""
        await asyncio.sleep(max(0.0, self._random.gauss(self._mean_s, self._deviation_s)))
        self._left -= 1
        return "go", 0.0, self._left == 0, False, {"success": True}


class ErrandSeries(Errand):
    """Errands whose length and deviation change after every `tasks_each` tasks."""

    def __init__(
        self, *, series: Sequence[tuple[int, float]], tasks_each: int, mean_s: float
    ) -> None:
        super().__init__(turns=0, mean_s=mean_s, deviation_s=0.0)
        self._series = series
        self._tasks_each = tasks_each

    async def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Start an episode with the turns and the deviation of its place in the series."""
        place = int(str(task["index"])) // self._tasks_each
        self._turns, self._deviation_s = self._series[place]
        return await super().reset(seed, task)


async def judge(trajectory: Trajectory, *, mean_s: float, spread: float = 0.2) -> float:
    """Wait as long as a judge takes, and say something that differs between attempts."""
    random = Random(trajectory.id)
    await asyncio.sleep(mean_s * math.exp(random.gauss(0.0, spread)))
    return random.random()
