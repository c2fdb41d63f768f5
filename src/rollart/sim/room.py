"""Room: the memory of an engine that holds keys and values.

A job takes room for all the tokens it will have, so a sequence that started never runs out of it.
What is left over holds the prefixes of sessions between two turns, and gives them up, the least
recently used first, as soon as a job wants the room. A job larger than the whole room gets it when
no other job is there.
"""

from rollart.sim.job import Job
from rollart.types import TrajectoryId


class Room:
    """Counts the tokens whose keys and values an engine holds."""

    __slots__ = ("_idle", "_jobs", "capacity", "idle_tokens", "used")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.used = 0.0
        """Tokens reserved by jobs."""
        self.idle_tokens = 0.0
        """Tokens of prefixes that wait for their session's next turn."""
        self._jobs = 0
        self._idle: dict[TrajectoryId, float] = {}
        """Their lengths, the least recently used first."""

    def take(self, job: Job) -> bool:
        """Make room for a job and note what of it is cached; return False if there is none."""
        tokens = job.context + job.response
        if self.used + tokens > self.capacity and self._jobs:
            return False
        job.cached = min(max(self.drop(job.session), job.received), job.context)
        self._jobs += 1
        self.used += tokens
        while self._idle and self.used + self.idle_tokens > self.capacity:
            self.drop(next(iter(self._idle)))
        return True

    def give_back(self, job: Job, *, keep: float) -> None:
        """Free a job's room; `keep` tokens of it stay as an idle prefix."""
        self._jobs -= 1
        self.used = self.used - job.tokens if self._jobs else 0.0
        if keep:
            self._idle[job.session] = keep
            self.idle_tokens += keep

    def drop(self, session: TrajectoryId) -> float:
        """Forget an idle prefix; return how long it was."""
        tokens = self._idle.pop(session, 0.0)
        self.idle_tokens -= tokens
        return tokens

    def clear(self) -> None:
        """Forget every idle prefix."""
        self._idle.clear()
        self.idle_tokens = 0.0
