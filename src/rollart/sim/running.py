"""Running: the sequences an engine samples for, all at once.

They advance together, one token per engine step, so their progress is one number: `clock`, the
tokens each has sampled since the engine began. A sequence that still needs `n` tokens is done when
the clock has grown by `n`. Ends lie in a heap; that of a job which was interrupted stays there and
is skipped when met.
"""

from heapq import heappop, heappush

from rollart.sim.job import Job
from rollart.types import TrajectoryId

_End = tuple[float, int, Job]
"""The clock at which a job will be done, and a number that tells entries apart."""


class Running:
    """Jobs that sample, and when each will be done."""

    __slots__ = ("_ends", "_listed", "_overtaken", "cached", "clock", "jobs")

    def __init__(self) -> None:
        self.jobs: dict[TrajectoryId, Job] = {}
        self.clock = 0.0
        self.cached = 0.0
        """Tokens of all of them whose keys and values are held."""
        self._ends: list[_End] = []
        self._listed = 0
        """Ends ever listed."""
        self._overtaken = 0
        """How many of those still listed will not be."""

    def start(self, job: Job) -> None:
        """Let a job sample."""
        job.state = "running"
        job.began = self.clock
        self.jobs[job.session] = job
        self.cached += job.context + job.sampled
        self._listed += 1
        job.listed = self._listed
        heappush(self._ends, (self.clock + job.response - job.sampled, self._listed, job))

    def interrupt(self, job: Job) -> None:
        """Stop a job before its end."""
        self._overtaken += 1
        self._stop(job)

    def advance(self, steps: float) -> float:
        """Let every job take so many steps; return the tokens they sampled."""
        self.clock += steps
        tokens = steps * len(self.jobs)
        self.cached += tokens
        return tokens

    def left(self) -> float | None:
        """Return how many steps it is to the next end; None if nothing runs."""
        ends = self._ends
        while self._overtaken and ends and not self._is_true(ends[0]):
            heappop(ends)
            self._overtaken -= 1
        return ends[0][0] - self.clock if ends else None

    def reach_end(self) -> None:
        """Set the clock to the next end exactly, whatever rounding made of it."""
        self.clock = max(self.clock, self._ends[0][0])

    def take_done(self) -> list[Job]:
        """Let go of the jobs whose end the clock has reached."""
        ends, clock = self._ends, self.clock
        done: list[Job] = []
        while ends and ends[0][0] <= clock:
            end = heappop(ends)
            if self._overtaken and not self._is_true(end):
                self._overtaken -= 1
                continue
            job = end[2]
            self._stop(job)
            job.state = "done"
            job.sampled = job.response
            done.append(job)
        return done

    def _stop(self, job: Job) -> None:
        jobs = self.jobs
        del jobs[job.session]
        job.sampled += self.clock - job.began
        self.cached = self.cached - (job.context + job.sampled) if jobs else 0.0

    def _is_true(self, end: _End) -> bool:
        """Say whether a listed end will be: its job may have been interrupted."""
        _, number, job = end
        return job.listed == number and self.jobs.get(job.session) is job
