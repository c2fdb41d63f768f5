"""Jobs on their way to engines, and engines that leave and return."""

import pytest
from small_worlds import small_costs

from rollart.control.routing import Routing
from rollart.sim.attempt import Job
from rollart.sim.engine import SimEngine
from rollart.sim.fleet import Fleet, FleetMember
from rollart.sim.loop import Loop
from rollart.types import EngineId, EngineInfo, TrajectoryId, Version

A, B, LENT = EngineId("a"), EngineId("b"), EngineId("lent")


class Rig:
    def __init__(self, **affinity: tuple[str, ...]) -> None:
        self.loop = Loop()
        members = [
            FleetMember(engine=self._engine(A), pool="compute"),
            FleetMember(engine=self._engine(B), pool="bandwidth"),
            FleetMember(engine=self._engine(LENT), pool="training", lent=True),
        ]
        self.fleet = Fleet(members, routing=Routing(affinity=affinity), loop=self.loop)
        self.ended: dict[int, Job] = {}

    def _engine(self, id_: EngineId) -> SimEngine:
        return SimEngine(id_, costs=small_costs(), loop=self.loop, reuse_prefixes=True)

    def generate(self, session: int, *, domain: str = "web", response: int = 200) -> Job:
        job = Job(session=TrajectoryId(session), context=500, response=response, on_done=self._done)
        self.fleet.generate(job, domain=domain)
        return job

    def _done(self, job: Job) -> None:
        self.ended[job.session] = job

    def run(self, until: float = 1e6) -> None:
        self.loop.after(until - self.loop.now, lambda: None)
        while self.loop.now < until and self.loop.step():
            pass

    def loads(self) -> list[int]:
        return [self.fleet.engine(id_).in_flight for id_ in (A, B, LENT)]


def test_jobs_go_to_the_pool_their_domain_prefers():
    rig = Rig(web=("compute",), math=("bandwidth",))
    for session in range(3):
        rig.generate(session, domain="web")
    rig.generate(9, domain="math")
    assert rig.loads() == [3, 1, 0]
    rig.run()
    assert len(rig.ended) == 4
    rig.fleet.router.check()


def test_control_knows_engines_by_pool_and_whether_they_are_lent():
    assert Rig().fleet.infos == (
        EngineInfo(id=A, pool="compute", version=Version(0)),
        EngineInfo(id=B, pool="bandwidth", version=Version(0)),
        EngineInfo(id=LENT, pool="training", version=Version(0), lent=True),
    )


def test_a_lent_engine_serves_only_while_it_is_open():
    rig = Rig()
    for session in range(4):
        rig.generate(session, response=5000)
    assert rig.loads() == [2, 2, 0]
    rig.fleet.open(LENT)
    rig.fleet.open(LENT)
    rig.generate(5)
    assert rig.loads() == [2, 2, 1]
    rig.fleet.close(LENT)
    rig.fleet.close(LENT)
    assert sum(rig.loads()[:2]) == 5
    rig.run()
    assert len(rig.ended) == 5


def test_jobs_of_an_engine_that_closes_go_on_with_what_they_have():
    rig = Rig()
    jobs = [rig.generate(session, response=1000) for session in range(2)]
    rig.run(2.0)
    rig.fleet.close(A)
    kept = jobs[0].sampled
    assert 0 < kept < 1000
    assert rig.loads() == [0, 2, 0]
    rig.run()
    assert rig.ended.keys() == {0, 1}
    sampled = [rig.fleet.engine(id_).usage.sampled_tokens for id_ in (A, B)]  # pyright: ignore
    assert sampled == [pytest.approx(kept), pytest.approx(2000 - kept)]


def test_with_no_engine_open_jobs_wait_until_one_opens():
    rig = Rig()
    first = rig.generate(1, response=1000)
    rig.run(2.0)
    rig.fleet.close(A)
    rig.fleet.close(B)
    second, third = rig.generate(2), rig.generate(3)
    rig.run(50.0)
    assert rig.ended == {}
    assert rig.fleet.abort(second) == 0.0
    rig.fleet.forget(second.session)
    rig.fleet.open(B)
    rig.run()
    assert rig.ended == {1: first, 3: third}
    rig.fleet.router.check()


def test_an_aborted_job_does_not_end_and_a_forgotten_session_keeps_no_prefix():
    rig = Rig()
    job = rig.generate(1, response=1000)
    rig.run(2.0)
    assert rig.fleet.abort(job) > 0
    rig.fleet.forget(job.session)
    rig.run(100.0)
    assert (rig.ended, rig.loads()) == ({}, [0, 0, 0])


def test_use_is_the_mean_over_a_pools_engines():
    rig = Rig()
    rig.generate(1)
    rig.run(100.0)
    busy = rig.fleet.engine(A).busy_s
    assert rig.fleet.busy_s() == {"compute": busy, "bandwidth": 0.0, "training": 0.0}
