"""Prefill/decode disaggregation: some engines prefill, others decode, and caches move between them.

To the fleet such a unit is one engine. A job is prefilled by the engine that holds its session's
prefix, its keys and values cross a link, and the decode engine with the fewest jobs samples it.
"""

from collections.abc import Sequence
from functools import partial

from rollart.sim.attempt import Job
from rollart.sim.engine import SimEngine, Watcher
from rollart.sim.loop import Loop, Timer
from rollart.types import EngineId, TrajectoryId, Version


class DisaggregatedEngine:
    """Prefill engines and decode engines that serve as one engine."""

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
        """The version of the weights that are loaded."""
        return self._decode[0].version

    @property
    def parts(self) -> tuple[SimEngine, ...]:
        """Every engine of the unit."""
        return (*self._prefill, *self._decode)

    @property
    def workers(self) -> int:
        """How many engines it consists of."""
        return len(self.parts)

    @property
    def in_flight(self) -> int:
        """How many jobs it has not completed."""
        return len(self._parts) + len(self._restart)

    @property
    def busy_s(self) -> float:
        """The mean busy time of its engines."""
        return sum(engine.busy_s for engine in self.parts) / len(self.parts)

    def submit(self, job: Job) -> None:
        """Accept a job."""
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
        """Stop every job and drop every prefix; return the jobs, to continue on other engines."""
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
        """Pause all work; jobs keep their progress."""
        for engine in self.parts:
            engine.suspend()

    def update(self, version: Version, *, keep_cache: bool) -> None:
        """Load new weights; cached tokens are prefilled again unless `keep_cache`."""
        if not keep_cache:
            self._restart = self.evict()
        for engine in self.parts:
            engine.update(version, keep_cache=keep_cache)

    def resume(self) -> None:
        """Continue after `suspend`."""
        for engine in self.parts:
            engine.resume()
        restart, self._restart = self._restart, []
        for job in restart:
            self.submit(job)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with each interval in which one of its engines was busy."""
        for engine in self.parts:
            engine.watch(watcher)

    def flush(self) -> None:
        """Report the current busy intervals."""
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
