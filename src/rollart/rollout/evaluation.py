"""Evaluation: held-out episodes with the weights the engines hold, outside the scheduler.

Sessions have negative ids and slots numbers of their own, so neither meets those of a run that goes
on beside them. Tasks come from a stream of their own seed and say `split = "test"`: an environment
that divides its problems poses none of those it trains on; one that does not may pose them again.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollart.rollout.env_contract import AttemptError
from rollart.rollout.env_manager import Access, EnvManager, Setup
from rollart.rollout.env_slot import EnvSlot, close_all
from rollart.rollout.tasks import together
from rollart.seeds import derive_seed
from rollart.types import AttemptSpec, Failure, GroupId, Task, Trajectory, TrajectoryId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation measured."""

    trajectories: tuple[Trajectory, ...]
    failed: int
    """Episodes that infrastructure cut short; they count for nothing."""
    last_failure: str = ""
    """What cut the last of them short."""

    @property
    def figures(self) -> dict[str, float]:
        """Success rate, mean reward and mean turns, over all tasks and by task.

        Of no episode at all there are none: a failure of infrastructure is no failure to succeed.
        """
        figures = _figures(self.trajectories, "") if self.trajectories else {}
        names = sorted({trajectory.task.env for trajectory in self.trajectories})
        if len(names) > 1:
            for name in names:
                figures |= _figures(
                    [t for t in self.trajectories if t.task.env == name], f"{name}/"
                )
        if self.failed:
            figures["failed"] = float(self.failed)
        return figures


def _figures(
    trajectories: "list[Trajectory] | tuple[Trajectory, ...]", prefix: str
) -> dict[str, float]:
    count = len(trajectories)
    return {
        f"{prefix}success_rate": sum(t.success for t in trajectories) / count,
        f"{prefix}reward": sum(t.reward for t in trajectories) / count,
        f"{prefix}turns": sum(len(t.payload) for t in trajectories) / count,
    }


class Evaluator:
    """Plays held-out episodes."""

    def __init__(
        self,
        *,
        setups: Mapping[str, Setup],
        access: Access,
        tasks: Callable[[int], Task],
        slots: range,
        seed: int,
    ) -> None:
        """Play as many episodes at once as there are slots."""
        self._setups = setups
        self._access = access
        self._tasks = tasks
        self._slots = [EnvSlot(number) for number in slots]
        self._seed = seed
        self._sessions = 0
        self._turn = asyncio.Lock()

    async def run(self, episodes: int) -> Evaluation:
        """Play the first `episodes` tasks of the stream, each once, after any run before it.

        Two at once would put two episodes into one environment.
        """
        async with self._turn:
            return await self._run(episodes)

    async def close(self) -> None:
        """Close every environment, and give them a while for it."""
        await close_all(self._slots)

    async def _run(self, episodes: int) -> Evaluation:
        free = list(self._slots)
        waiting = asyncio.Semaphore(len(free))
        results: list[Trajectory | Failure] = []

        async def play(index: int) -> None:
            async with waiting:
                slot = free.pop()
                try:
                    results.append(await self._play(index, slot))
                finally:
                    free.append(slot)

        await together(play(index) for index in range(episodes))
        finished = [result for result in results if isinstance(result, Trajectory)]
        failures = [result.message for result in results if isinstance(result, Failure)]
        return Evaluation(
            trajectories=tuple(sorted(finished, key=lambda each: -each.id)),
            failed=len(failures),
            last_failure=failures[-1] if failures else "",
        )

    async def _play(self, index: int, slot: EnvSlot) -> Trajectory | Failure:
        task = self._tasks(index)
        setup = self._setups[task.env]
        self._sessions += 1
        spec = AttemptSpec(
            id=TrajectoryId(-self._sessions),
            group=GroupId(-1),
            task=task,
            system=setup.system,
            limits=setup.limits,
            sampling=setup.sampling,
            seed=derive_seed(self._seed, index),
        )
        manager = EnvManager(spec, setup=setup, slot=slot, access=self._access)
        try:
            return await manager.play(_ignore)
        except AttemptError as error:
            return error.failure


def _ignore(_version: Version) -> None:
    pass
