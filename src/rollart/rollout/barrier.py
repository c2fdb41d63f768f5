"""Barrier: where episodes wait for each other before every turn. Only mode `sync` has one.

`LockStepBarrier` is the live side of `control.episode.LockStep`: that decides which episodes may
pass, and this wakes them in the order of their ids, so that a lock-step run is the same every time.
"""

import asyncio
from typing import Protocol

from rollart.control.episode import LockStep
from rollart.types import TrajectoryId


class Barrier(Protocol):
    """Lets episodes pass, together or each by itself.

    Example: `barrier.join([7, 8]); await barrier.arrive(7); barrier.leave(7)`
    """

    def join(self, ids: list[TrajectoryId]) -> None:
        """Count episodes in."""
        ...

    async def arrive(self, episode: TrajectoryId) -> None:
        """Return when the episode may pass."""
        ...

    def leave(self, episode: TrajectoryId) -> None:
        """Count an episode out."""
        ...


class NoBarrier:
    """Every episode passes at once."""

    def join(self, ids: list[TrajectoryId]) -> None:
        """Count nobody."""

    async def arrive(self, episode: TrajectoryId) -> None:
        """Return at once."""

    def leave(self, episode: TrajectoryId) -> None:
        """Count nobody."""


class LockStepBarrier:
    """Episodes pass together: when every running one has arrived."""

    def __init__(self) -> None:
        self._barrier = LockStep()
        self._waiting: dict[TrajectoryId, asyncio.Future[None]] = {}

    def join(self, ids: list[TrajectoryId]) -> None:
        """Count episodes in."""
        self._barrier.join(ids)

    async def arrive(self, episode: TrajectoryId) -> None:
        """Return when every running episode has arrived."""
        self._waiting[episode] = asyncio.get_running_loop().create_future()
        self._wake(self._barrier.arrive(episode))
        try:
            await self._waiting[episode]
        finally:
            del self._waiting[episode]

    def leave(self, episode: TrajectoryId) -> None:
        """Count an episode out."""
        self._wake(self._barrier.leave(episode))

    def _wake(self, released: tuple[TrajectoryId, ...]) -> None:
        # Not at once: the last to arrive must wait like the others, or it would pass first.
        if released:
            asyncio.get_running_loop().call_soon(self._open, released)

    def _open(self, released: tuple[TrajectoryId, ...]) -> None:
        for episode in released:
            future = self._waiting.get(episode)
            if future is not None and not future.done():
                future.set_result(None)


def barrier_for(is_lockstep: bool) -> Barrier:
    """Return the barrier of a mode."""
    return LockStepBarrier() if is_lockstep else NoBarrier()
