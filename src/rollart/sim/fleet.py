"""Fleet: every engine of a simulated cluster behind the router that live runs use.

A job is always on one engine that is open, or waits here until one opens: closing an engine hands
its jobs to the router again, so none is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rollart.control.routing import Router, Routing
from rollart.sim.attempt import Job
from rollart.sim.engine import Watcher
from rollart.sim.loop import Loop
from rollart.types import EngineId, EngineInfo, TrajectoryId, Version


class AnyEngine(Protocol):
    """The engine interface the fleet needs: SimEngine, TimedEngine, DisaggregatedEngine.

    Example:
        engine = TimedEngine(EngineId("h800-0"), loop=Loop())
        (engine.in_flight, engine.busy_s) == (0, 0.0)

    """

    @property
    def id(self) -> EngineId:
        """Its id."""
        ...

    @property
    def in_flight(self) -> int:
        """How many jobs it has not completed."""
        ...

    @property
    def busy_s(self) -> float:
        """How long it has been busy."""
        ...

    @property
    def workers(self) -> int:
        """How many engines it consists of."""
        ...

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with each interval in which one of its engines was busy."""
        ...

    def flush(self) -> None:
        """Report the current busy intervals."""
        ...

    def submit(self, job: Job) -> None:
        """Accept a job."""
        ...

    def abort(self, job: Job) -> float:
        """Stop a job; return how many tokens it has sampled."""
        ...

    def evict(self) -> list[Job]:
        """Stop every job and drop every prefix; return the jobs, to continue on other engines."""
        ...

    def forget(self, session: TrajectoryId) -> None:
        """Drop the prefix of a session that ended."""
        ...

    def suspend(self) -> None:
        """Pause all work; jobs keep their progress."""
        ...

    def update(self, version: Version, *, keep_cache: bool) -> None:
        """Load new weights; cached tokens stay valid only with `keep_cache`."""
        ...

    def resume(self) -> None:
        """Continue after `suspend`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMember:
    """An engine and the pool it belongs to.

    Example:
        FleetMember(engine=TimedEngine(EngineId("h800-0"), loop=loop), pool="h800")

    """

    engine: AnyEngine
    pool: str
    lent: bool = False
    """It runs on training hardware and serves only while it is lent."""


class Fleet:
    """Routes jobs to engines and moves them when one closes; while none is open they wait."""

    def __init__(self, members: Sequence[FleetMember], *, routing: Routing, loop: Loop) -> None:
        self.members = {member.engine.id: member for member in members}
        open_ = [(m.engine.id, m.pool) for m in members if not m.lent]
        self.router = Router(routing, engines=open_)
        self._loop = loop
        self._engines = {member.engine.id: member.engine for member in members}
        self._unrouted: list[Job] = []
        self._open = {id_ for id_, _ in open_}

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines as control knows them."""
        return tuple(
            EngineInfo(id=id_, pool=member.pool, version=Version(0), lent=member.lent)
            for id_, member in self.members.items()
        )

    def engine(self, id_: EngineId) -> AnyEngine:
        """Return an engine by its id."""
        return self._engines[id_]

    def busy_s(self) -> dict[str, float]:
        """Return the mean busy time of each pool's engines."""
        busy: dict[str, list[float]] = {}
        for member in self.members.values():
            busy.setdefault(member.pool, []).append(member.engine.busy_s)
        return {pool: sum(seconds) / len(seconds) for pool, seconds in busy.items()}

    def generate(self, job: Job, *, domain: str) -> None:
        """Route a job to an engine and complete it there."""
        job.domain = domain
        job.then, job.on_done = job.on_done, self._done
        self._submit(job)

    def abort(self, job: Job) -> float:
        """Stop a job; return how many tokens it has sampled."""
        if job.home is None:
            self._unrouted.remove(job)
            return job.sampled
        self.router.cancelled(job.session)
        return self._engines[job.home].abort(job)

    def forget(self, session: TrajectoryId) -> None:
        """Drop what is cached for a session that ended."""
        home = self.router.forget(session)
        if home is not None:
            self._engines[home].forget(session)

    def open(self, id_: EngineId) -> None:
        """Start routing to an engine."""
        if id_ in self._open:
            return
        self._open.add(id_)
        member = self.members[id_]
        self.router.open(id_, member.pool, is_guest=member.lent)
        unrouted, self._unrouted = self._unrouted, []
        for job in unrouted:
            self._submit(job)

    def close(self, id_: EngineId) -> None:
        """Stop routing to an engine; its jobs continue on others with what they have sampled."""
        self.close_all([id_])

    def close_all(self, ids: Sequence[EngineId]) -> None:
        """Close several engines together, so that none takes over the jobs of another."""
        closing = [id_ for id_ in ids if id_ in self._open]
        for id_ in closing:
            self._open.discard(id_)
            self.router.close(id_)
        for id_ in closing:
            for job in self._engines[id_].evict():
                self.router.cancelled(job.session)
                self._submit(job)

    def _submit(self, job: Job) -> None:
        if not self._open:
            job.home = None
            self._unrouted.append(job)
            return
        tokens = int(job.context + job.sampled)
        now = self._loop.now
        home = self.router.pick(job.session, domain=job.domain, now=now, length=tokens)
        job.home, job.sampled_before = home, job.sampled
        self._engines[home].submit(job)

    def _done(self, job: Job) -> None:
        tokens = int(job.response - job.sampled_before)
        self.router.done(job.session, now=self._loop.now, sampled=tokens)
        assert job.then is not None
        job.then(job)
