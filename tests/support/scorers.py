"""Scorers for tests."""

import asyncio
from collections.abc import Callable, Sequence

from rollart.rollout.scoring import Scored, Scorer
from rollart.types import Reward, Trajectory


def in_thread(function: Callable[[Trajectory], float]) -> Scorer:
    """Return a scorer that runs a function of this process in a thread."""

    async def score(trajectories: Sequence[Trajectory]) -> Sequence[Scored]:
        values = [await asyncio.to_thread(function, each) for each in trajectories]
        return [Reward(value=value) for value in values]

    return score
