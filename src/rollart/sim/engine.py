"""SimEngine: one inference replica with continuous batching, as a fluid.

    submit ─► waiting (no room for its keys and values) ─► unread ─► reading ─► running ─► done

All running sequences advance together (`running`), at a speed that is constant between two changes
of the batch: the cache that grows meanwhile counts from the next change on. That makes every change
cost O(log batch), whatever the number of tokens.

Prefill runs one request at a time, in chunks; beside each chunk the running sequences take one
step. New weights make every cached token worthless: what runs is read again, as the paper has it.

Running: the sequences an engine samples for, all at once.

They advance together, one token per engine step, so their progress is one number: `clock`, the
tokens each has sampled since the engine began. A sequence that still needs `n` tokens is done when
the clock has grown by `n`. Ends lie in a heap; that of a job which was interrupted stays there and
is skipped when met.

Room: the memory of an engine that holds keys and values.

A job takes room for all the tokens it will have, so a sequence that started never runs out of it.
What is left over holds the prefixes of sessions between two turns, and gives them up, the least
recently used first, as soon as a job wants the room. A job larger than the whole room gets it when
no other job is there.

Reading: the request an engine reads, and what engines have read and sampled so far.
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
"""Told of the begin and the end of an interval."""


class BusyTime:
    """Adds up the intervals in which something worked."""

    __slots__ = ("_total_s", "since", "watcher")

    def __init__(self) -> None:
        self.since: float | None = None
        """Begin of the interval in progress; None: it does not work."""
        self.watcher: Watcher | None = None
        self._total_s = 0.0

    def begin(self, now: float) -> None:
        """Work from now on, if it did not."""
        if self.since is None:
            self.since = now

    def end(self, now: float) -> None:
        """Work no more, if it did."""
        since = self.since
        if since is not None:
            self.since = None
            self._total_s += now - since
            if self.watcher is not None:
                self.watcher(since, now)

    def flush(self, now: float) -> None:
        """Tell of the interval so far and go on."""
        if self.since is not None:
            self.end(now)
            self.begin(now)

    def total_s(self, now: float) -> float:
        """Return the time it has worked."""
        return self._total_s if self.since is None else self._total_s + now - self.since


_End = tuple[float, int, Job]
"""The clock at which a job will be done, and a number that tells entries apart."""


class RunningJobs:
    """Jobs that sample, and when each will be done."""

    __slots__ = ("_ends", "_last_entry", "_stale", "cached", "clock", "jobs")

    def __init__(self) -> None:
        self.jobs: dict[TrajectoryId, Job] = {}
        self.clock = 0.0
        self.cached = 0.0
        """Tokens of all of them whose keys and values are held."""
        self._ends: list[_End] = []
        self._last_entry = 0
        """Ends ever listed."""
        self._stale = 0
        """How many of those still listed will not be."""

    def start(self, job: Job) -> None:
        """Let a job sample."""
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
        """Let every job take so many steps; return the tokens they sampled."""
        self.clock += steps
        tokens = steps * len(self.jobs)
        self.cached += tokens
        return tokens

    def left(self) -> float | None:
        """Return how many steps it is to the next end; None if nothing runs."""
        ends = self._ends
        while self._stale and ends and not self._is_current(ends[0]):
            heappop(ends)
            self._stale -= 1
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
        """Say whether a listed end will be: its job may have been interrupted."""
        _, number, job = end
        return job.entry == number and self.jobs.get(job.session) is job


class KvMemory:
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


@dataclass(slots=True, kw_only=True)
class EngineUsage:
    """What an engine has done so far, brought up to date at its changes."""

    prefill_s: float = 0.0
    """Time prefill alone would have taken."""
    prefill_tokens: float = 0.0
    """Tokens read."""
    reused_tokens: float = 0.0
    """Tokens that were cached when their request was read."""
    sampled_tokens: float = 0.0
    recomputed_tokens: float = 0.0
    """Cached tokens that new weights made worthless under a request."""


class PrefillProgress:
    """The request being read."""

    __slots__ = ("alone_s", "job", "left", "seconds", "steps", "tokens")

    def __init__(self, job: Job, *, tokens: float, cached: float, costs: EngineCosts) -> None:
        constants = costs.constants
        self.job = job
        self.tokens = tokens
        self.seconds = costs.prefill_s(tokens, cached=cached)
        """Of prefill alone."""
        self.steps = tokens / constants.chunk_tokens
        self.alone_s = self.seconds + self.steps * constants.step_overhead_s
        """With what its steps cost beside, if nothing is running."""
        self.left = 1.0
        """The share that is not read yet."""


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
        self._memory.clear()
        self._proceed()
        return jobs

    def forget(self, session: TrajectoryId) -> None:
        """Drop the prefix of a session that ended."""
        self._memory.drop(session)

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
            self._memory.give_back(job, keep=0.0)
        job.state = "gone"

    def _stop_reading(self, prefill: PrefillProgress) -> Job:
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
