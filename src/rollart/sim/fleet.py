"""Fleet: every engine of a simulated cluster behind the router the live program routes by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rollart.control.routing import Router, Routing
from rollart.sim.attempt import Job
from rollart.sim.engine import Watcher
from rollart.sim.loop import Loop
from rollart.types import EngineId, EngineInfo, TrajectoryId, Version


class AnyEngine(Protocol):
    """What the fleet asks of an engine."""

    @property
    def id(self) -> EngineId:
        """Its name."""
        ...

    @property
    def in_flight(self) -> int:
        """How many jobs it has not completed."""
        ...

    @property
    def busy_s(self) -> float:
        """How long it has worked."""
        ...

    @property
    def workers(self) -> int:
        """How many engines work in it."""
        ...

    def watch(self, watcher: Watcher) -> None:
        """Tell of each interval in which one of its engines worked."""
        ...

    def flush(self) -> None:
        """Tell of the intervals in progress."""
        ...

    def submit(self, job: Job) -> None:
        """Take a job in."""
        ...

    def abort(self, job: Job) -> float:
        """Stop a job; return how many tokens it has sampled."""
        ...

    def evict(self) -> list[Job]:
        """Stop every job and forget every prefix; return the jobs, to go on elsewhere."""
        ...

    def forget(self, session: TrajectoryId) -> None:
        """Drop the prefix of a session that ended."""
        ...

    def suspend(self) -> None:
        """Stop where it is."""
        ...

    def update(self, version: Version, *, keep_cache: bool) -> None:
        """Take new weights on."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMember:
    """An engine and where it belongs."""

    engine: AnyEngine
    pool: str
    lent: bool = False
    """It lives on training hardware and serves only while it is lent."""


class Fleet:
    """Routes jobs to engines and moves them when an engine leaves; with none they wait."""

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
        """Return an engine by its name."""
        return self._engines[id_]

    def busy_s(self) -> dict[str, float]:
        """Return how long each pool's engines have been busy, on average."""
        busy: dict[str, list[float]] = {}
        for member in self.members.values():
            busy.setdefault(member.pool, []).append(member.engine.busy_s)
        return {pool: sum(seconds) / len(seconds) for pool, seconds in busy.items()}

    def generate(self, job: Job, *, domain: str) -> None:
        """Complete a job on the engine that fits it."""
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
        """Let an engine be routed to."""
        if id_ in self._open:
            return
        self._open.add(id_)
        member = self.members[id_]
        self.router.open(id_, member.pool, is_guest=member.lent)
        unrouted, self._unrouted = self._unrouted, []
        for job in unrouted:
            self._submit(job)

    def close(self, id_: EngineId) -> None:
        """Route no more to an engine; its jobs go on elsewhere with what they have."""
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
