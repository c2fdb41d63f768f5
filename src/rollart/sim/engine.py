"""SimEngine: one inference replica with continuous batching, as a fluid.

    submit ─► waiting (no room for its keys and values) ─► unread ─► reading ─► running ─► done

All running sequences advance together (`running`), at a speed that is constant between two changes
of the batch: the cache that grows meanwhile counts from the next change on. That makes every change
cost O(log batch), whatever the number of tokens.

Prefill runs one request at a time, in chunks; beside each chunk the running sequences take one
step. New weights make every cached token worthless: what runs is read again, as the paper has it.
"""

from collections import deque

from rollart.sim.busy import BusyTime, Watcher
from rollart.sim.costs import EngineCosts
from rollart.sim.job import Job
from rollart.sim.loop import Loop, Timer
from rollart.sim.reading import Reading, Usage
from rollart.sim.room import Room
from rollart.sim.running import Running
from rollart.types import EngineId, TrajectoryId, Version


class SimEngine:
    """Completes jobs in simulated time."""

    __slots__ = (
        "_busy",
        "_costs",
        "_loop",
        "_next_ends_prefill",
        "_prefill",
        "_reuse",
        "_room",
        "_running",
        "_since",
        "_speed",
        "_suspended",
        "_timer",
        "_unread",
        "_waiting",
        "_whole_s",
        "id",
        "usage",
        "version",
    )

    def __init__(
        self, id_: EngineId, *, costs: EngineCosts, loop: Loop, reuse_prefixes: bool
    ) -> None:
        self.id = id_
        self.version = Version(0)
        self.usage = Usage()
        self._busy = BusyTime()
        self._costs = costs
        self._loop = loop
        self._reuse = reuse_prefixes
        self._room = Room(float(costs.capacity_tokens))
        self._waiting: deque[Job] = deque()
        self._unread: deque[Job] = deque()
        self._prefill: Reading | None = None
        self._running = Running()
        self._speed = 0.0
        """Steps per second of what runs, if nothing is read."""
        self._whole_s = 0.0
        """Time to read the whole of what is being read, beside what runs."""
        self._since = 0.0
        self._timer: Timer | None = None
        self._next_ends_prefill = False
        self._suspended = False

    @property
    def workers(self) -> int:
        """How many engines work in it."""
        return 1

    @property
    def in_flight(self) -> int:
        """How many jobs it has not completed."""
        unread = len(self._unread) + (self._prefill is not None)
        return len(self._waiting) + unread + len(self._running.jobs)

    @property
    def busy_s(self) -> float:
        """How long it has worked."""
        return self._busy.total_s(self._loop.now)

    def submit(self, job: Job) -> None:
        """Take a job in."""
        self._progress()
        job.state = "waiting"
        self._waiting.append(job)
        self._proceed()

    def abort(self, job: Job) -> float:
        """Stop a job; return how many tokens it has sampled."""
        self._progress()
        self._remove(job)
        self._proceed()
        return job.sampled

    def evict(self) -> list[Job]:
        """Stop every job and forget every prefix; return the jobs, to go on elsewhere."""
        self._progress()
        jobs = [*self._running.jobs.values()]
        jobs += [self._prefill.job] if self._prefill else []
        jobs += [*self._unread, *self._waiting]
        for job in jobs:
            self._remove(job)
        self._room.clear()
        self._proceed()
        return jobs

    def forget(self, session: TrajectoryId) -> None:
        """Drop the prefix of a session that ended."""
        self._room.drop(session)

    def suspend(self) -> None:
        """Stop where it is."""
        self._progress()
        self._suspended = True
        self._proceed()

    def update(self, version: Version, *, keep_cache: bool) -> None:
        """Take new weights on; what was cached is read again unless it is kept."""
        self._progress()
        self.version = version
        if keep_cache:
            return
        self._room.clear()
        interrupted = list(self._running.jobs.values())
        for job in interrupted:
            self._running.interrupt(job)
            job.cached = job.context + job.sampled
        if self._prefill is not None:
            interrupted.append(self._stop_reading(self._prefill))
        self._unread.extendleft(reversed(interrupted))
        for job in self._unread:
            self.usage.recomputed_tokens += job.cached
            job.cached = job.received = 0.0
            job.state = "unread"
        self._proceed()

    def resume(self) -> None:
        """Go on."""
        self._progress()
        self._suspended = False
        self._proceed()

    def watch(self, watcher: Watcher) -> None:
        """Tell of each interval in which it worked."""
        self._busy.watcher = watcher

    def flush(self) -> None:
        """Tell of the interval in progress."""
        self._busy.flush(self._loop.now)

    def _remove(self, job: Job) -> None:
        if job.state == "waiting":
            self._waiting.remove(job)
        else:
            if job.state == "unread":
                self._unread.remove(job)
            elif job.state == "reading":
                assert self._prefill is not None
                self._stop_reading(self._prefill)
            else:
                self._running.interrupt(job)
            self._room.give_back(job, keep=0.0)
        job.state = "gone"

    def _stop_reading(self, prefill: Reading) -> Job:
        """Leave a request half read; what was read is lost."""
        self._prefill = None
        share, job = 1 - prefill.left, prefill.job
        self.usage.prefill_tokens += share * prefill.tokens
        self.usage.prefill_s += share * prefill.seconds
        job.cached += share * prefill.tokens
        return job

    def _progress(self) -> None:
        """Bring the state up to now."""
        now = self._loop.now
        elapsed, self._since = now - self._since, now
        if elapsed <= 0 or self._busy.since is None:
            return
        prefill = self._prefill
        if prefill is None:
            steps = elapsed * self._speed
        else:
            share = elapsed / self._whole_s
            prefill.left -= share
            steps = share * prefill.steps
        self.usage.sampled_tokens += self._running.advance(steps)

    def _proceed(self) -> None:
        """Start what can start and ask to be woken at the next change."""
        timer = self._timer
        if timer is not None:
            timer.action = None
            self._timer = None
        if self._suspended:
            self._busy.end(self._loop.now)
            return
        while self._waiting and self._room.take(self._waiting[0]):
            job = self._waiting.popleft()
            job.state = "unread"
            self._unread.append(job)
        while self._unread and self._prefill is None:
            self._read(self._unread.popleft())
        delay_s = self._next_change_s()
        if delay_s is None:
            self._busy.end(self._loop.now)
            return
        if self._busy.since is None:
            self._busy.since = self._loop.now
        self._timer = self._loop.after(delay_s if delay_s > 0 else 0.0, self._wake)

    def _read(self, job: Job) -> None:
        cached = job.cached
        tokens = job.context + job.sampled - cached
        self.usage.reused_tokens += cached
        if tokens <= 0:
            self._run(job)
            return
        job.state = "reading"
        self._prefill = Reading(job, tokens=tokens, cached=cached, costs=self._costs)

    def _next_change_s(self) -> float | None:
        """Return how long until a prefill or a sequence ends; set the speed until then."""
        running = self._running
        left, count = running.left(), len(running.jobs)
        step_s = self._costs.decode_s(count, cached=running.cached) if count else 0.0
        self._next_ends_prefill = False
        prefill = self._prefill
        if prefill is None:
            if left is None:
                return None
            self._speed = 1 / step_s
            return left * step_s
        whole_s = self._whole_s = prefill.alone_s + prefill.steps * step_s
        delay_s = prefill.left * whole_s
        if left is not None and left * whole_s < delay_s * prefill.steps:
            return left * whole_s / prefill.steps
        self._next_ends_prefill = True
        return delay_s

    def _wake(self) -> None:
        self._timer = None
        self._progress()
        if self._next_ends_prefill:
            self._end_reading()
        else:
            self._running.reach_end()
        done = self._running.take_done()
        for job in done:
            self._room.give_back(job, keep=job.context + job.response if self._reuse else 0.0)
        self._proceed()
        for job in done:
            job.on_done(job)

    def _end_reading(self) -> None:
        prefill, self._prefill = self._prefill, None
        assert prefill is not None
        self.usage.prefill_tokens += prefill.tokens
        self.usage.prefill_s += prefill.seconds
        self._run(prefill.job)

    def _run(self, job: Job) -> None:
        if job.born is None:
            job.born = self.version
        self._running.start(job)
