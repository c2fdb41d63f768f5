"""Number guessing whose every step waits."""

import asyncio
from collections.abc import Mapping

from benchmarks.trl_sides import game
from rollart.types import Json


class SlowGuess:
    """The sides' game with a latency in `step`."""

    system_prompt = game.SYSTEM

    def __init__(self, *, latency_s: float) -> None:
        self._game = game.make_env()
        self._latency_s = latency_s

    async def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Start a game, at once."""
        return self._game.reset(seed, task)

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        """Guess, after the latency."""
        await asyncio.sleep(self._latency_s)
        return self._game.step(action)
