"""Prefill/decode disaggregation: some engines read, others sample, and caches move between them.

To its driver a unit of such engines is one engine. A job is read by the prefill engine that holds
its session's prefix, its keys and values cross a link, and the decode engine with the fewest jobs
samples it.
"""

from collections.abc import Sequence
from functools import partial

from rollart.sim.attempt import Job
from rollart.sim.engine import SimEngine, Watcher
from rollart.sim.loop import Loop, Timer
from rollart.types import EngineId, TrajectoryId, Version


class DisaggregatedEngine:
    """Prefill engines and decode engines that serve as one."""

    def __init__(
        self,
        id_: EngineId,
        *,
        prefill: Sequence[SimEngine],
        decode: Sequence[SimEngine],
        loop: Loop,
        transfer_token_s: float,
    ) -> None:
        self.id = id_
        self._prefill = prefill
        self._decode = decode
        self._loop = loop
        self._transfer_token_s = transfer_token_s
        self._homes: dict[TrajectoryId, SimEngine] = {}
        self._parts: dict[Job, tuple[SimEngine, Job] | Timer] = {}
        self._restart: list[Job] = []

    @property
    def version(self) -> Version:
        """The version of the weights held."""
        return self._decode[0].version

    @property
    def parts(self) -> tuple[SimEngine, ...]:
        """Every engine of the unit."""
        return (*self._prefill, *self._decode)

    @property
    def workers(self) -> int:
        """How many engines work in it."""
        return len(self.parts)

    @property
    def in_flight(self) -> int:
        """How many jobs it has not completed."""
        return len(self._parts) + len(self._restart)

    @property
    def busy_s(self) -> float:
        """How long its engines have worked, on average."""
        return sum(engine.busy_s for engine in self.parts) / len(self.parts)

    def submit(self, job: Job) -> None:
        """Take a job in."""
        engine = self._homes.get(job.session)
        if engine is None:
            engine = min(self._prefill, key=lambda each: each.in_flight)
            self._homes[job.session] = engine
        reading = Job(
            session=job.session,
            context=job.context + job.sampled,
            response=0.0,
            on_done=partial(self._transfer, job),
        )
        self._parts[job] = (engine, reading)
        engine.submit(reading)

    def abort(self, job: Job) -> float:
        """Stop a job; return how many tokens it has sampled."""
        if job in self._restart:
            self._restart.remove(job)
            return job.sampled
        part = self._parts.pop(job)
        if isinstance(part, Timer):
            part.cancel()
            return job.sampled
        engine, running = part
        job.sampled += engine.abort(running)
        if engine in self._decode:
            job.born = running.born
        return job.sampled

    def evict(self) -> list[Job]:
        """Stop every job and forget every prefix; return the jobs, to go on elsewhere."""
        jobs = [*self._parts, *self._restart]
        for job in jobs:
            self.abort(job)
        self._homes.clear()
        for engine in self.parts:
            engine.evict()
        return jobs

    def forget(self, session: TrajectoryId) -> None:
        """Drop the prefix of a session that ended."""
        home = self._homes.pop(session, None)
        if home is not None:
            home.forget(session)

    def suspend(self) -> None:
        """Stop where it is."""
        for engine in self.parts:
            engine.suspend()

    def update(self, version: Version, *, keep_cache: bool) -> None:
        """Take new weights on; what was cached is read again unless it is kept."""
        if not keep_cache:
            self._restart = self.evict()
        for engine in self.parts:
            engine.update(version, keep_cache=keep_cache)

    def resume(self) -> None:
        """Go on."""
        for engine in self.parts:
            engine.resume()
        restart, self._restart = self._restart, []
        for job in restart:
            self.submit(job)

    def watch(self, watcher: Watcher) -> None:
        """Tell of each interval in which one of its engines worked."""
        for engine in self.parts:
            engine.watch(watcher)

    def flush(self) -> None:
        """Tell of the intervals in progress."""
        for engine in self.parts:
            engine.flush()

    def _transfer(self, job: Job, read: Job) -> None:
        seconds = read.context * self._transfer_token_s
        self._parts[job] = self._loop.after(seconds, partial(self._sample, job))

    def _sample(self, job: Job) -> None:
        engine = min(self._decode, key=lambda each: each.in_flight)
        sampling = Job(
            session=job.session,
            context=job.context + job.sampled,
            response=job.response - job.sampled,
            on_done=partial(self._finish, job),
            born=job.born,
            received=job.context + job.sampled,
        )
        self._parts[job] = (engine, sampling)
        engine.submit(sampling)

    def _finish(self, job: Job, sampled: Job) -> None:
        del self._parts[job]
        job.born = sampled.born
        job.sampled = job.response
        job.on_done(job)
