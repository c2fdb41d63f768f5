"""Scoring: has finished trajectories scored beside the rollout, and says what came of it.

    Score(ids) ─► buffer ─► score ─┬─ Reward     ─► buffer, TrajectoryScored
                                   └─ ScoreError ─► ScoreFailed

Nothing waits for it. Every trajectory of a `Score` is answered exactly once, whatever the scorer
does: what it raises, and what is no finite number, is a failed score. Closing it ends what is still
on its way; the scheduler has then let go of those trajectories.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from rollart.errors import ScoreError
from rollart.events import Event, Score, ScoreFailed, TrajectoryScored
from rollart.rollout.buffer import Buffer
from rollart.types import Reward, Trajectory

Scored = Reward | ScoreError
Scorer = Callable[[Sequence[Trajectory]], Awaitable[Sequence[Scored]]]
"""Scores attempts that belong together, one or a whole group: an outcome for each, in order."""


class Scoring:
    """Carries out `Score` commands."""

    def __init__(
        self,
        score: Scorer,
        *,
        buffer: Buffer,
        post: Callable[[Event], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Take what scores, where trajectories lie, and where answers and tasks go."""
        self._score = score
        self._buffer = buffer
        self._post = post
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, command: Score) -> None:
        """Start to score; the answers come as events."""
        # Taken now: one that is dropped while it is scored leaves the buffer.
        records = [self._buffer.get(id_) for id_ in command.ids]
        batches = [records] if command.together else [[each] for each in records]
        for batch in batches:
            task = self._tasks.create_task(self._answer(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def close(self) -> None:
        """End what is on its way: nobody waits for it any more."""
        for task in self._running:
            task.cancel()

    async def _answer(self, batch: Sequence[Trajectory]) -> None:
        outcomes: Sequence[Scored]
        try:
            outcomes = await self._score(batch)
            if len(outcomes) != len(batch):
                raise ScoreError(f"{len(outcomes)} rewards for {len(batch)} trajectories")
        except Exception as error:
            outcomes = [_failure(error)] * len(batch)
        for trajectory, outcome in zip(batch, outcomes, strict=True):
            self._post(self._settle(trajectory, outcome))

    def _settle(self, trajectory: Trajectory, outcome: Scored) -> Event:
        if isinstance(outcome, ScoreError):
            return ScoreFailed(id=trajectory.id, message=str(outcome))
        if not _is_finite(outcome.value):
            message = f"the reward must be a finite number; it was {outcome.value!r}"
            return ScoreFailed(id=trajectory.id, message=message)
        self._buffer.score(trajectory.id, outcome.value)
        return TrajectoryScored(id=trajectory.id, reward=outcome.value, parts=outcome.parts)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False


def _failure(error: Exception) -> ScoreError:
    if isinstance(error, ScoreError):
        return error
    return ScoreError(f"{type(error).__name__}: {error}")
