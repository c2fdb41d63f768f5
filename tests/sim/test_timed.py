"""Engines whose jobs take the time their script says."""

import pytest

from rollart.sim.attempt import Job
from rollart.sim.loop import Loop
from rollart.sim.timed import TimedEngine
from rollart.types import EngineId, TrajectoryId, Version


class Rig:
    def __init__(self) -> None:
        self.loop = Loop()
        self.engine = TimedEngine(EngineId("e"), loop=self.loop)
        self.ended: dict[int, float] = {}

    def submit(self, session: int, seconds: float) -> Job:
        job = Job(
            session=TrajectoryId(session),
            context=10,
            response=5,
            seconds=seconds,
            on_done=lambda job: self.ended.update({job.session: self.loop.now}),
        )
        self.engine.submit(job)
        return job

    def run(self, until: float = 1e9) -> None:
        self.loop.after(until - self.loop.now, lambda: None)
        while self.loop.now < until and self.loop.step():
            pass


def test_jobs_take_their_own_time_and_do_not_slow_each_other():
    rig = Rig()
    job = rig.submit(1, 2.0)
    rig.submit(2, 3.0)
    rig.run()
    assert rig.ended == {1: 2.0, 2: 3.0}
    assert (job.sampled, job.born) == (5, Version(0))
    assert rig.engine.busy_s == 3.0


def test_a_suspended_engine_makes_no_progress():
    rig = Rig()
    rig.submit(1, 2.0)
    rig.run(0.5)
    rig.engine.suspend()
    late = rig.submit(2, 1.0)
    rig.run(10.0)
    assert rig.ended == {}
    rig.engine.update(Version(1), keep_cache=False)
    rig.engine.resume()
    rig.engine.resume()
    rig.run()
    assert rig.ended == {1: pytest.approx(11.5), 2: pytest.approx(11.0)}
    assert late.born == Version(1)
    assert rig.engine.busy_s == pytest.approx(2.0)


def test_an_aborted_or_evicted_job_does_not_end():
    rig = Rig()
    first = rig.submit(1, 2.0)
    second = rig.submit(2, 3.0)
    rig.run(1.0)
    assert rig.engine.abort(first) == 0.0
    assert rig.engine.evict() == [second]
    assert rig.engine.in_flight == 0
    rig.run()
    assert rig.ended == {}
    assert rig.engine.busy_s == 1.0


def test_busy_intervals_are_told():
    rig, told = Rig(), []
    rig.engine.watch(lambda begin, end: told.append((begin, end)))
    rig.submit(1, 2.0)
    rig.run(5.0)
    rig.submit(2, 3.0)
    rig.run(6.0)
    rig.engine.flush()
    rig.run()
    assert told == [(0.0, 2.0), (5.0, 6.0), (6.0, 8.0)]
