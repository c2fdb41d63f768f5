"""FrozenLake whose every step waits, and whose slots may be made to misbehave."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from rollart.envs.frozen_lake import FrozenLake
from rollart.types import Json


class LatencyLake:
    """Steps take normal(mean_s, deviation_s), at least 0; faults belong to slots, for ever."""

    system_prompt = FrozenLake.system_prompt

    def __init__(
        self,
        *,
        slot: int,
        mean_s: float,
        deviation_s: float = 0.0,
        hung: Sequence[int] = (),
        slow: Sequence[int] = (),
        crashing: Sequence[int] = (),
        crash_rate: float = 0.1,
        slow_factor: float = 20.0,
    ) -> None:
        self._lake = FrozenLake(size=4)
        self._mean_s = mean_s * (slow_factor if slot in slow else 1.0)
        self._deviation_s = deviation_s
        self._hangs = slot in hung
        self._crash_rate = crash_rate if slot in crashing else 0.0
        self._random = Random(slot)

    async def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Start an episode, at once."""
        return self._lake.reset(seed, task)

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        """Move, after the slot's latency."""
        if self._hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(max(0.0, self._random.gauss(self._mean_s, self._deviation_s)))
        if self._random.random() < self._crash_rate:
            raise RuntimeError("the environment crashed")
        return self._lake.step(action)
