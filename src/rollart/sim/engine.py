"""SimEngine: one inference replica with continuous batching, as a fluid model.

    submit ─► waiting (no cache memory free) ─► unread ─► prefill ─► running ─► done

Owns one replica's cache memory (`KvMemory`), its current prefill and its running sequences
(`RunningJobs`). All running sequences advance together, at a speed that is constant between two
changes of the batch; the cache that grows meanwhile counts from the next change on. So each change
costs O(log batch), however many tokens it spans. Prefill handles one request at a time, in chunks;
beside each chunk the running sequences take one step. New weights invalidate the cache, so running
requests are prefilled again, as in the paper.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from rollart.sim.attempt import Job
from rollart.sim.costs import EngineCosts
from rollart.sim.loop import Loop, Timer
from rollart.types import EngineId, TrajectoryId, Version

Watcher = Callable[[float, float], None]
"""Called with the start and the end of each busy interval."""


class BusyTime:
    """Adds up the intervals in which something worked."""

    __slots__ = ("_total_s", "since", "watcher")

    def __init__(self) -> None:
        self.since: float | None = None
        """Start of the current interval; None while idle."""
        self.watcher: Watcher | None = None
        self._total_s = 0.0

    def begin(self, now: float) -> None:
        """Start an interval, unless one has started."""
        if self.since is None:
            self.since = now

    def end(self, now: float) -> None:
        """End the current interval, if there is one, and report it."""
        since = self.since
        if since is not None:
            self.since = None
            self._total_s += now - since
            if self.watcher is not None:
                self.watcher(since, now)

    def flush(self, now: float) -> None:
        """Report the current interval so far and start the next one."""
        if self.since is not None:
            self.end(now)
            self.begin(now)

    def total_s(self, now: float) -> float:
        """Return the busy time so far."""
        return self._total_s if self.since is None else self._total_s + now - self.since


_End = tuple[float, int, Job]
"""The clock at which a job ends, the number of this entry, and the job."""


class RunningJobs:
    """Jobs that sample, and when each ends.

    All jobs advance one token per engine step, so `clock`, the tokens each has sampled since the
    engine started, is the progress of all of them. A job that needs `n` more tokens ends when the
    clock has grown by `n`. Ends are kept in a heap; the entry of an interrupted job stays there
    and is skipped when it is reached, because removing it would cost O(batch).
    """

    __slots__ = ("_ends", "_last_entry", "_stale", "cached", "clock", "jobs")

    def __init__(self) -> None:
        self.jobs: dict[TrajectoryId, Job] = {}
        self.clock = 0.0
        self.cached = 0.0
        """Tokens of all running jobs whose keys and values are held."""
        self._ends: list[_End] = []
        self._last_entry = 0
        """Number of the newest entry in `_ends`."""
        self._stale = 0
        """How many entries in `_ends` belong to interrupted jobs."""

    def start(self, job: Job) -> None:
        """Start sampling for a job."""
        job.state = "running"
        job.began = self.clock
        self.jobs[job.session] = job
        self.cached += job.context + job.sampled
        self._last_entry += 1
        job.entry = self._last_entry
        heappush(self._ends, (self.clock + job.response - job.sampled, self._last_entry, job))

    def interrupt(self, job: Job) -> None:
        """Stop a job before its end."""
        self._stale += 1
        self._stop(job)

    def advance(self, steps: float) -> float:
        """Advance every job by `steps`; return the tokens they sampled."""
        self.clock += steps
        tokens = steps * len(self.jobs)
        self.cached += tokens
        return tokens

    def left(self) -> float | None:
        """Return the steps until the next job ends; None if nothing runs."""
        ends = self._ends
        while self._stale and ends and not self._is_current(ends[0]):
            heappop(ends)
            self._stale -= 1
        return ends[0][0] - self.clock if ends else None

    def reach_end(self) -> None:
        """Set the clock to exactly the next end, correcting rounding errors."""
        self.clock = max(self.clock, self._ends[0][0])

    def take_done(self) -> list[Job]:
        """Remove and return the jobs whose end the clock has reached."""
        ends, clock = self._ends, self.clock
        done: list[Job] = []
        while ends and ends[0][0] <= clock:
            end = heappop(ends)
            if self._stale and not self._is_current(end):
                self._stale -= 1
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

    def _is_current(self, end: _End) -> bool:
        """Return whether an entry is valid: its job may have been interrupted since."""
        _, number, job = end
        return job.entry == number and self.jobs.get(job.session) is job


class KvMemory:
    """Counts the tokens whose keys and values an engine holds.

    A job reserves memory for all the tokens it will have, so a started sequence never runs out.
    The rest holds the prefixes of sessions between two turns; when a job needs memory, the least
    recently used prefixes are dropped first. A job larger than the whole memory is admitted when
    no other job is there, or it would wait forever.
    """

    __slots__ = ("_idle", "_jobs", "capacity", "idle_tokens", "used")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.used = 0.0
        """Tokens reserved by jobs."""
        self.idle_tokens = 0.0
        """Tokens of prefixes kept for their session's next turn."""
        self._jobs = 0
        self._idle: dict[TrajectoryId, float] = {}
        """Tokens of each idle prefix, the least recently used first."""

    def take(self, job: Job) -> bool:
        """Reserve memory for a job and note what of it is cached; return False if it is full."""
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
        """Free a job's memory; `keep` tokens of it stay as an idle prefix."""
        self._jobs -= 1
        self.used = self.used - job.tokens if self._jobs else 0.0
        if keep:
            self._idle[job.session] = keep
            self.idle_tokens += keep

    def drop(self, session: TrajectoryId) -> float:
        """Drop an idle prefix; return its length in tokens."""
        tokens = self._idle.pop(session, 0.0)
        self.idle_tokens -= tokens
        return tokens

    def clear(self) -> None:
        """Drop every idle prefix."""
        self._idle.clear()
        self.idle_tokens = 0.0


@dataclass(slots=True, kw_only=True)
class EngineUsage:
    """What an engine has done so far; updated whenever its batch changes.

    Example:
        EngineUsage(prefill_tokens=1200.0, reused_tokens=300.0, sampled_tokens=450.0)

    """

    prefill_s: float = 0.0
    """Time prefill would have taken with nothing running beside it."""
    prefill_tokens: float = 0.0
    """Tokens prefilled."""
    reused_tokens: float = 0.0
    """Tokens that were already cached when their request was prefilled."""
    sampled_tokens: float = 0.0
    recomputed_tokens: float = 0.0
    """Cached tokens of unfinished requests that new weights invalidated."""


class PrefillProgress:
    """The request being prefilled, and how much of it is left."""

    __slots__ = ("alone_s", "job", "left", "seconds", "steps", "tokens")

    def __init__(self, job: Job, *, tokens: float, cached: float, costs: EngineCosts) -> None:
        constants = costs.constants
        self.job = job
        self.tokens = tokens
        self.seconds = costs.prefill_s(tokens, cached=cached)
        """Time of the prefill itself."""
        self.steps = tokens / constants.chunk_tokens
        self.alone_s = self.seconds + self.steps * constants.step_overhead_s
        """Time including the overhead of its steps, if nothing else runs."""
        self.left = 1.0
        """The share that is not prefilled yet."""


class SimEngine:
    """Completes jobs in simulated time."""

    __slots__ = (
        "_busy",
        "_costs",
        "_loop",
        "_memory",
        "_next_ends_prefill",
        "_prefill",
        "_reuse",
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
        self.usage = EngineUsage()
        self._busy = BusyTime()
        self._costs = costs
        self._loop = loop
        self._reuse = reuse_prefixes
        self._memory = KvMemory(float(costs.capacity_tokens))
        self._waiting: deque[Job] = deque()
        self._unread: deque[Job] = deque()
        self._prefill: PrefillProgress | None = None
        self._running = RunningJobs()
        self._speed = 0.0
        """Decode steps per second while nothing is prefilled."""
        self._whole_s = 0.0
        """Time of the whole current prefill, beside what runs."""
        self._since = 0.0
        self._timer: Timer | None = None
        self._next_ends_prefill = False
        self._suspended = False

    @property
    def workers(self) -> int:
        """How many engines it consists of."""
        return 1

    @property
    def in_flight(self) -> int:
        """How many jobs it has not completed."""
        unread = len(self._unread) + (self._prefill is not None)
        return len(self._waiting) + unread + len(self._running.jobs)

    @property
    def busy_s(self) -> float:
        """How long it has been busy."""
        return self._busy.total_s(self._loop.now)

    def submit(self, job: Job) -> None:
        """Accept a job."""
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
        """Stop every job and drop every prefix; return the jobs, to continue on other engines."""
        self._progress()
        jobs = [*self._running.jobs.values()]
        jobs += [self._prefill.job] if self._prefill else []
        jobs += [*self._unread, *self._waiting]
        for job in jobs:
            self._remove(job)
        self._memory.clear()
        self._proceed()
        return jobs

    def forget(self, session: TrajectoryId) -> None:
        """Drop the prefix of a session that ended."""
        self._memory.drop(session)

    def suspend(self) -> None:
        """Pause all work; jobs keep their progress."""
        self._progress()
        self._suspended = True
        self._proceed()

    def update(self, version: Version, *, keep_cache: bool) -> None:
        """Load new weights; cached tokens are prefilled again unless `keep_cache`."""
        self._progress()
        self.version = version
        if keep_cache:
            return
        self._memory.clear()
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
        """Continue after `suspend`."""
        self._progress()
        self._suspended = False
        self._proceed()

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with each busy interval."""
        self._busy.watcher = watcher

    def flush(self) -> None:
        """Report the current busy interval."""
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
            self._memory.give_back(job, keep=0.0)
        job.state = "removed"

    def _stop_reading(self, prefill: PrefillProgress) -> Job:
        """Stop a prefill halfway; what was prefilled is lost."""
        self._prefill = None
        share, job = 1 - prefill.left, prefill.job
        self.usage.prefill_tokens += share * prefill.tokens
        self.usage.prefill_s += share * prefill.seconds
        job.cached += share * prefill.tokens
        return job

    def _progress(self) -> None:
        """Advance the state to the current time."""
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
        """Start what can start and set a timer for the next change."""
        timer = self._timer
        if timer is not None:
            timer.action = None
            self._timer = None
        if self._suspended:
            self._busy.end(self._loop.now)
            return
        while self._waiting and self._memory.take(self._waiting[0]):
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
        self._prefill = PrefillProgress(job, tokens=tokens, cached=cached, costs=self._costs)

    def _next_change_s(self) -> float | None:
        """Return the time until a prefill or a sequence ends; set the speed until then."""
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
            self._memory.give_back(job, keep=job.context + job.response if self._reuse else 0.0)
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
