"""EnvWorker: runs attempts, one per environment slot, and reports how each one ended.

Every launch is answered by exactly one event: the task of an attempt posts it at its end, or a
callback does if the task was cancelled before it first ran. A cancelled or failed attempt frees
its slot at once, whatever its environment is still doing, because a slot awaits no environment.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from rollart.events import (
    Event,
    Launch,
    TrajectoryBorn,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TurnCut,
)
from rollart.rollout.env_contract import AttemptError
from rollart.rollout.env_manager import Access, EnvManager, Setup
from rollart.rollout.env_slot import EnvSlot, close_all
from rollart.types import (
    AttemptSpec,
    EngineId,
    SlotId,
    Task,
    Trajectory,
    TrajectoryId,
    TrajectoryInfo,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Where a worker's results go.

    Example: `Ends(put=buffer.put, post=controller.post)`
    """

    put: Callable[[Trajectory], None]
    """Takes a finished trajectory, before the event that reports it."""
    post: Callable[[Event], None]
    """Takes the event of each attempt that ended."""

    def cut(self, id_: TrajectoryId, cost: int) -> None:
        """Report a turn that ended with its attempt."""
        self.post(TurnCut(id=id_, cost=cost))


class Tasks(Protocol):
    """What attempts run in.

    Example: `async with asyncio.TaskGroup() as group: worker.launch(launches, group)`
    """

    def create_task(self, coro: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start an attempt."""
        ...


class EnvWorker:
    """Runs attempts in environment slots.

    Example: `EnvWorker(setups={"lake": setup}, access=access, tasks=stream.task, ends=ends)`
    """

    def __init__(
        self,
        *,
        setups: Mapping[str, Setup],
        access: Access,
        tasks: Callable[[int], Task],
        ends: Ends,
        score_elsewhere: bool = False,
    ) -> None:
        self._setups = setups
        self._access = access
        self._tasks = tasks
        self._ends = ends
        self._score_elsewhere = score_elsewhere
        self._slots: dict[SlotId, EnvSlot] = {}
        self._running: dict[TrajectoryId, asyncio.Task[None]] = {}

    def launch(self, launches: Sequence[Launch], group: Tasks) -> None:
        """Start attempts that belong together."""
        self._access.barrier.join([launch.id for launch in launches])
        for launch in launches:
            task = group.create_task(self._run(launch))
            self._running[launch.id] = task
            task.add_done_callback(partial(self._answer_if_never_begun, launch.id))

    def cancel(self, trajectory: TrajectoryId) -> None:
        """Stop an attempt, if it has not ended by itself."""
        task = self._running.get(trajectory)
        if task is not None:
            task.cancel()

    def settle(self, event: Event) -> None:
        """Take an attempt that ended out of the barrier, once its successor has joined it.

        Earlier, which episodes pass together would depend on which environment answered last.
        """
        match event:
            case TrajectoryFinished():
                self.leave(event.info.id)
            case TrajectoryFailed() | TrajectoryCancelled():
                self.leave(event.id)
            case _:
                pass

    def leave(self, trajectory: TrajectoryId) -> None:
        """Take an attempt out of the barrier."""
        self._access.barrier.leave(trajectory)

    def open_engine(self, engine: EngineId, pool: str, *, is_guest: bool) -> None:
        """Let an engine take requests."""
        self._access.engines.open(engine, pool, is_guest=is_guest)

    def close_engine(self, engine: EngineId) -> None:
        """Send an engine no further request."""
        self._access.engines.close(engine)

    async def close(self) -> None:
        """Close every environment, and give them a while for it."""
        await close_all(self._slots.values())

    async def _run(self, launch: Launch) -> None:
        task = self._tasks(launch.task)
        setup = self._setups[task.env]
        spec = AttemptSpec(
            id=launch.id,
            group=launch.group,
            task=task,
            system=setup.system,
            limits=setup.limits,
            sampling=setup.sampling,
            seed=launch.seed,
        )
        if launch.slot not in self._slots:
            self._slots[launch.slot] = EnvSlot(launch.slot)
        slot = self._slots[launch.slot]
        manager = EnvManager(spec, setup=setup, slot=slot, access=self._access)
        event = await self._outcome(manager)
        del self._running[launch.id]
        self._ends.post(event)

    def _answer_if_never_begun(self, id_: TrajectoryId, _task: asyncio.Task[None]) -> None:
        """Answer for an attempt that was cancelled before its task first ran."""
        if self._running.pop(id_, None) is not None:
            self._ends.post(TrajectoryCancelled(id=id_, cost=0))

    async def _outcome(self, manager: EnvManager) -> Event:
        id_ = manager.spec.id
        try:
            trajectory = await manager.play(
                lambda version: self._ends.post(TrajectoryBorn(id=id_, version=version))
            )
        except AttemptError as error:
            cost, turns = manager.cost, manager.turns
            return TrajectoryFailed(id=id_, failure=error.failure, cost=cost, turns=turns)
        except asyncio.CancelledError:
            return TrajectoryCancelled(id=id_, cost=manager.cost, turns=manager.turns)
        self._ends.put(trajectory)
        return TrajectoryFinished(info=self._info(trajectory, manager))

    def _info(self, trajectory: Trajectory, manager: EnvManager) -> TrajectoryInfo:
        scoring = self._setups[trajectory.task.env].scoring
        is_scored = scoring == "env" and not self._score_elsewhere
        return TrajectoryInfo(
            id=trajectory.id,
            born=trajectory.born,
            reward=trajectory.reward if is_scored else None,
            success=trajectory.success,
            turns=len(trajectory.payload),
            cost=trajectory.cost,
            stop=trajectory.stop,
            is_compared=scoring == "group",
            served=dict(manager.served),
            unread=manager.unread,
        )
