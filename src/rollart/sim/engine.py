"""SimEngine: one inference replica with continuous batching, as a fluid.

    submit ─► waiting (no room for its keys and values) ─► prefill queue ─► running ─► done

All running sequences advance together, one token per engine step, so their progress is one number:
`_clock`, the tokens each has sampled since the engine began. A sequence that still needs `n` tokens
is done when the clock has grown by `n`. The clock's speed is constant between two changes of the
batch, which makes every change cost O(log batch) and a run of any length exact in its events.

Prefill runs one request at a time, in chunks; beside each chunk the running sequences take one
step. New weights make every cached token worthless: what runs is read again, as the paper has it.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from rollart.sim.costs import EngineCosts
from rollart.sim.loop import Loop, Timer
from rollart.types import EngineId, TrajectoryId, Version


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One turn to be completed."""

    session: TrajectoryId
    context: float
    """Tokens to be read, the whole history."""
    response: float
    """Tokens to be sampled."""
    on_done: Callable[["Job"], None]
    born: Version | None = None
    """The version that sampled the first token."""
    sampled: float = 0.0
    """Tokens sampled before the engine last took it up."""
    began: float = 0.0
    end: float = 0.0
    """The engine's clock when it began to sample, and when it will be done."""
    seconds: float = 0.0
    """How long it takes on an engine that is timed and not modelled."""
    received: float = 0.0
    """Tokens of the context whose keys and values come with it."""
    cached: float = 0.0
    """Tokens of the context that need not be read again."""
    state: str = "new"

    @property
    def tokens(self) -> float:
        """Tokens it will have when done."""
        return self.context + self.response


@dataclass(slots=True, kw_only=True)
class Usage:
    """What an engine has done so far."""

    busy_s: float = 0.0
    prefill_s: float = 0.0
    prefill_tokens: float = 0.0
    reused_tokens: float = 0.0
    sampled_tokens: float = 0.0
    recomputed_tokens: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Prefill:
    """The request being read."""

    job: Job
    alone_s: float
    steps: float
    left: float = 1.0


@dataclass(slots=True, kw_only=True)
class _Reserved:
    """Room for keys and values."""

    capacity: float
    used: float = 0.0
    idle: OrderedDict[TrajectoryId, float] = field(default_factory=OrderedDict[TrajectoryId, float])
    idle_tokens: float = 0.0

    def take(self, job: Job) -> bool:
        """Make room for a job, dropping idle prefixes, the least recently used first."""
        if self.used + job.tokens > self.capacity and self.used > 0:
            return False
        job.cached = min(max(self.drop(job.session), job.received), job.context)
        self.used += job.tokens
        while self.idle and self.used + self.idle_tokens > self.capacity:
            self.idle_tokens -= self.idle.popitem(last=False)[1]
        return True

    def give_back(self, job: Job, *, keep: float) -> None:
        """Free a job's room; `keep` tokens of it stay as an idle prefix."""
        self.used -= job.tokens
        if keep:
            self.idle[job.session] = keep
            self.idle_tokens += keep

    def drop(self, session: TrajectoryId) -> float:
        """Forget an idle prefix; return how long it was."""
        tokens = self.idle.pop(session, 0.0)
        self.idle_tokens -= tokens
        return tokens

    def clear(self) -> None:
        """Forget every idle prefix."""
        self.idle.clear()
        self.idle_tokens = 0.0


class SimEngine:
    """Completes jobs in simulated time."""

    def __init__(
        self, id_: EngineId, *, costs: EngineCosts, loop: Loop, reuse_prefixes: bool
    ) -> None:
        self.id = id_
        self.version = Version(0)
        self.usage = Usage()
        self.on_interval: Callable[[float, float], None] | None = None
        """Told of each interval in which the engine was busy."""
        self._costs = costs
        self._loop = loop
        self._reuse = reuse_prefixes
        self._room = _Reserved(capacity=float(costs.capacity_tokens))
        self._waiting: deque[Job] = deque()
        self._unread: deque[Job] = deque()
        self._prefill: _Prefill | None = None
        self._running: dict[TrajectoryId, Job] = {}
        self._ends: list[tuple[float, int, Job]] = []
        self._pushed = 0
        self._clock = 0.0
        self._cached = 0.0
        self._speed = 0.0
        self._since = 0.0
        self._busy_since: float | None = None
        self._timer: Timer | None = None
        self._next_ends_prefill = False
        self._suspended = False

    @property
    def in_flight(self) -> int:
        """How many jobs it has not completed."""
        unread = len(self._unread) + (self._prefill is not None)
        return len(self._waiting) + unread + len(self._running)

    @property
    def busy_s(self) -> float:
        """How long it has worked."""
        return self.usage.busy_s

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
        jobs = [*self._running.values()]
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
        self.version = version
        if keep_cache:
            return
        self._room.clear()
        reading = [self._prefill.job] if self._prefill else []
        self._prefill = None
        running = list(self._running.values())
        for job in running:
            self._stop_running(job)
            self.usage.recomputed_tokens += job.context + job.sampled
        for job in reversed([*running, *reading]):
            job.cached = job.received = 0.0
            job.state = "unread"
            self._unread.appendleft(job)

    def resume(self) -> None:
        """Go on."""
        self._since = self._loop.now
        self._suspended = False
        self._proceed()

    def _remove(self, job: Job) -> None:
        match job.state:
            case "waiting":
                self._waiting.remove(job)
                return
            case "unread":
                self._unread.remove(job)
            case "reading":
                self._prefill = None
            case _:
                self._stop_running(job)
        job.state = "gone"
        self._room.give_back(job, keep=0.0)

    def _stop_running(self, job: Job) -> None:
        del self._running[job.session]
        sampled = self._clock - job.began
        self._cached -= job.context + job.sampled + sampled
        job.sampled += sampled

    def _progress(self) -> None:
        """Bring the state up to now."""
        now = self._loop.now
        elapsed, self._since = now - self._since, now
        if self._suspended or elapsed <= 0 or self._speed == 0:
            return
        self.usage.busy_s += elapsed
        steps = elapsed * self._speed
        prefill = self._prefill
        if prefill is not None:
            prefill.left -= elapsed / self._prefill_s(prefill)
            steps = elapsed / self._prefill_s(prefill) * prefill.steps
        self._clock += steps
        self._cached += steps * len(self._running)
        self.usage.sampled_tokens += steps * len(self._running)

    def _prefill_s(self, prefill: _Prefill) -> float:
        return prefill.alone_s + prefill.steps * self._step_s

    @property
    def _step_s(self) -> float:
        if not self._running:
            return 0.0
        return self._costs.decode_s(len(self._running), cached=self._cached)

    def _proceed(self) -> None:
        """Start what can start and ask to be woken at the next change."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._suspended:
            self._note_busy(is_busy=False)
            return
        while self._waiting and self._room.take(self._waiting[0]):
            job = self._waiting.popleft()
            job.state = "unread"
            self._unread.append(job)
        while self._prefill is None and self._unread:
            self._read(self._unread.popleft())
        delay_s = self._next_change_s()
        self._note_busy(is_busy=delay_s is not None)
        if delay_s is not None:
            self._timer = self._loop.after(max(delay_s, 0.0), self._wake)

    def _read(self, job: Job) -> None:
        cached = job.cached
        tokens = job.context + job.sampled - cached
        self.usage.prefill_tokens += tokens
        self.usage.reused_tokens += cached
        if tokens <= 0:
            self._run(job)
            return
        seconds = self._costs.prefill_s(tokens, cached=cached)
        constants = self._costs.constants
        job.state = "reading"
        steps = tokens / constants.chunk_tokens
        alone_s = seconds + steps * constants.step_overhead_s
        self._prefill = _Prefill(job=job, alone_s=alone_s, steps=steps)
        self.usage.prefill_s += seconds

    def _next_change_s(self) -> float | None:
        """Return how long until a prefill or a sequence ends; set the clock's speed."""
        ends, running = self._ends, self._running
        while ends and not self._is_running(ends[0]):
            heappop(ends)
        step_s = self._step_s
        left = ends[0][0] - self._clock if ends else None
        self._next_ends_prefill = False
        prefill = self._prefill
        if prefill is None:
            self._speed = 1 / step_s if step_s else 0.0
            return None if left is None else left * step_s
        whole_s = prefill.alone_s + prefill.steps * step_s
        self._speed = prefill.steps / whole_s if running else 1.0
        delay_s = prefill.left * whole_s
        if left is not None and left * whole_s < delay_s * prefill.steps:
            return left * whole_s / prefill.steps
        self._next_ends_prefill = True
        return delay_s

    def _wake(self) -> None:
        self._timer = None
        self._progress()
        ends = self._ends
        if self._next_ends_prefill:
            prefill, self._prefill = self._prefill, None
            assert prefill is not None
            self._run(prefill.job)
        else:
            self._clock = max(self._clock, ends[0][0])  # exactly, whatever rounding made of it
        done: list[Job] = []
        while ends and ends[0][0] <= self._clock:
            end = heappop(ends)
            if self._is_running(end):
                job = end[2]
                self._stop_running(job)
                job.state = "done"
                job.sampled = job.response
                self._room.give_back(job, keep=job.tokens if self._reuse else 0.0)
                done.append(job)
        self._proceed()
        for job in done:
            job.on_done(job)

    def _run(self, job: Job) -> None:
        job.state = "running"
        job.began = self._clock
        if job.born is None:
            job.born = self.version
        self._running[job.session] = job
        self._cached += job.context + job.sampled
        self._pushed += 1
        job.end = self._clock + job.response - job.sampled
        heappush(self._ends, (job.end, self._pushed, job))

    def _is_running(self, end: tuple[float, int, Job]) -> bool:
        """Say whether an entry of the heap is still true: its job may have been interrupted."""
        at, _, job = end
        return job.end == at and self._running.get(job.session) is job

    def _note_busy(self, *, is_busy: bool) -> None:
        if is_busy and self._busy_since is None:
            self._busy_since = self._loop.now
        elif not is_busy and self._busy_since is not None:
            if self.on_interval is not None:
                self.on_interval(self._busy_since, self._loop.now)
            self._busy_since = None
