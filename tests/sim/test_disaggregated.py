"""A unit of prefill and decode engines that serves as one engine."""

import pytest
from small_worlds import small_costs

from rollart.sim.attempt import Job
from rollart.sim.disaggregated import DisaggregatedEngine
from rollart.sim.engine import SimEngine
from rollart.sim.loop import Loop
from rollart.types import EngineId, TrajectoryId, Version

COSTS = small_costs()
TRANSFER_S = 1e-5


class Rig:
    def __init__(self, prefill: int = 1, decode: int = 1) -> None:
        self.loop = Loop()
        self.reads = [self._engine("p", number, reuse=True) for number in range(prefill)]
        self.samples = [self._engine("d", number, reuse=False) for number in range(decode)]
        self.unit = DisaggregatedEngine(
            EngineId("u"),
            prefill=self.reads,
            decode=self.samples,
            loop=self.loop,
            transfer_token_s=TRANSFER_S,
        )
        self.ended: dict[int, float] = {}

    def _engine(self, kind: str, number: int, *, reuse: bool) -> SimEngine:
        id_ = EngineId(f"{kind}{number}")
        return SimEngine(id_, costs=COSTS, loop=self.loop, reuse_prefixes=reuse)

    def submit(self, session: int, context: float, response: float) -> Job:
        job = Job(
            session=TrajectoryId(session),
            context=context,
            response=response,
            on_done=lambda job: self.ended.update({job.session: self.loop.now}),
        )
        self.unit.submit(job)
        return job

    def run(self, until: float = 1e9) -> None:
        self.loop.after(until - self.loop.now, lambda: None)
        while self.loop.now < until and self.loop.step():
            pass


def read_s(tokens: float, cached: float = 0.0) -> float:
    constants = COSTS.constants
    overhead_s = tokens / constants.chunk_tokens * constants.step_overhead_s
    return COSTS.prefill_s(tokens, cached=cached) + overhead_s


def test_a_job_is_read_moved_and_sampled():
    rig = Rig()
    job = rig.submit(1, 2000, 100)
    assert rig.unit.in_flight == 1
    rig.run()
    expected = read_s(2000) + 2000 * TRANSFER_S + 100 * COSTS.decode_s(1, cached=2000)
    assert rig.ended == {1: pytest.approx(expected, abs=1e-9)}
    assert (job.sampled, job.born, rig.unit.in_flight) == (100, Version(0), 0)
    assert rig.samples[0].usage.prefill_tokens == 0


def test_the_prefill_engine_keeps_the_prefix_it_read():
    rig = Rig(prefill=2)
    rig.submit(1, 2000, 100)
    rig.run(100.0)
    rig.submit(1, 2500, 100)
    rig.run()
    assert [engine.usage.prefill_tokens for engine in rig.reads] == [2500, 0]
    rig.unit.forget(TrajectoryId(1))
    rig.submit(1, 2600, 10)
    rig.run(1e9 + 100)
    assert sum(engine.usage.prefill_tokens for engine in rig.reads) == 2500 + 2600


def test_jobs_go_to_the_engines_with_the_fewest():
    rig = Rig(prefill=2, decode=2)
    for session in range(4):
        rig.submit(session, 1000, 50)
    assert [engine.in_flight for engine in rig.reads] == [2, 2]
    rig.run()
    assert len(rig.ended) == 4
    assert all(engine.busy_s > 0 for engine in (*rig.reads, *rig.samples))
    mean = sum(engine.busy_s for engine in rig.unit.parts) / 4
    assert rig.unit.busy_s == pytest.approx(mean)


@pytest.mark.parametrize("at_s", [0.01, read_s(2000) + 1000 * TRANSFER_S, 1.0])
def test_a_job_may_be_aborted_while_read_moved_or_sampled(at_s):
    rig = Rig()
    job = rig.submit(1, 2000, 500)
    rig.run(at_s)
    sampled = rig.unit.abort(job)
    assert (sampled > 0) == (at_s == 1.0)
    assert rig.unit.in_flight == 0
    rig.run()
    assert rig.ended == {}


def test_new_weights_start_reading_over_and_the_first_tokens_keep_their_version():
    rig = Rig()
    job = rig.submit(1, 2000, 500)
    other = rig.submit(2, 90_000, 10)
    rig.run(1.0)
    rig.unit.suspend()
    rig.unit.update(Version(1), keep_cache=False)
    assert rig.unit.in_flight == 2
    kept = job.sampled
    rig.unit.resume()
    rig.run()
    assert len(rig.ended) == 2
    assert 0 < kept < 500
    assert (job.born, other.born, rig.unit.version) == (Version(0), Version(1), Version(1))
    assert rig.samples[0].usage.sampled_tokens == pytest.approx(510)


def test_a_job_may_be_aborted_between_update_and_resume():
    rig = Rig()
    job = rig.submit(1, 2000, 500)
    rig.run(1.0)
    rig.unit.suspend()
    rig.unit.update(Version(1), keep_cache=False)
    assert rig.unit.abort(job) == job.sampled > 0
    rig.unit.resume()
    rig.run()
    assert (rig.ended, rig.unit.in_flight) == ({}, 0)


def test_evicted_jobs_are_those_that_were_not_done():
    rig = Rig()
    first, second = rig.submit(1, 2000, 10), rig.submit(2, 2000, 5000)
    rig.run(3.0)
    assert list(rig.ended) == [1]
    assert rig.unit.evict() == [second]
    assert first.sampled == 10
    assert 0 < second.sampled < 5000
    assert second.born == Version(0)


def test_intervals_of_every_part_are_told():
    rig, told = Rig(), []
    rig.unit.watch(lambda begin, end: told.append(end - begin))
    rig.submit(1, 2000, 5000)
    rig.run(3.0)
    rig.unit.flush()
    assert rig.unit.workers == 2
    assert sum(told) == pytest.approx(rig.unit.busy_s * 2)
