"""TimedEngine: an engine whose every job takes the seconds its script says.

Jobs do not slow each other; a suspended engine makes no progress. It replays durations measured in
a live run, and is what live runs are compared with.
"""

from functools import partial

from rollart.sim.attempt import Job
from rollart.sim.engine import BusyTime, Watcher
from rollart.sim.loop import Loop, Timer
from rollart.types import EngineId, TrajectoryId, Version


class TimedEngine:
    """Completes each job after the time given in `Job.seconds`."""

    def __init__(self, id_: EngineId, *, loop: Loop) -> None:
        self.id = id_
        self.version = Version(0)
        self._loop = loop
        self._left: dict[Job, float] = {}
        self._timers: dict[Job, tuple[float, Timer]] = {}
        self._suspended = False
        self._busy = BusyTime()

    @property
    def workers(self) -> int:
        """How many engines it consists of."""
        return 1

    @property
    def in_flight(self) -> int:
        """How many jobs it has not completed."""
        return len(self._left)

    @property
    def busy_s(self) -> float:
        """How long it has been busy."""
        return self._busy.total_s(self._loop.now)

    def submit(self, job: Job) -> None:
        """Accept a job."""
        self._left[job] = job.seconds
        if not self._suspended:
            self._start(job)

    def abort(self, job: Job) -> float:
        """Stop a job; return the tokens it has sampled: always 0, they come when the job ends."""
        del self._left[job]
        if job in self._timers:
            self._timers.pop(job)[1].cancel()
            self._note_end()
        return 0.0

    def evict(self) -> list[Job]:
        """Stop every job; return the jobs, to continue on other engines."""
        jobs = list(self._left)
        for job in jobs:
            self.abort(job)
            job.born = None
        return jobs

    def forget(self, session: TrajectoryId) -> None:
        """Do nothing: a timed engine keeps no prefixes."""

    def suspend(self) -> None:
        """Pause all work; jobs keep their progress."""
        self._suspended = True
        for job, (began, timer) in self._timers.items():
            timer.cancel()
            self._left[job] -= self._loop.now - began
        self._timers.clear()
        self._busy.end(self._loop.now)

    def update(self, version: Version, *, keep_cache: bool) -> None:
        """Load new weights."""
        del keep_cache
        self.version = version

    def resume(self) -> None:
        """Continue after `suspend`."""
        if not self._suspended:
            return
        self._suspended = False
        for job in self._left:
            self._start(job)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with each busy interval."""
        self._busy.watcher = watcher

    def flush(self) -> None:
        """Report the current busy interval."""
        self._busy.flush(self._loop.now)

    def _start(self, job: Job) -> None:
        if job.born is None:
            job.born = self.version
        timer = self._loop.after(self._left[job], partial(self._finish, job))
        self._timers[job] = (self._loop.now, timer)
        self._busy.begin(self._loop.now)

    def _finish(self, job: Job) -> None:
        del self._left[job], self._timers[job]
        self._note_end()
        job.sampled = job.response
        job.on_done(job)

    def _note_end(self) -> None:
        if not self._timers:
            self._busy.end(self._loop.now)
