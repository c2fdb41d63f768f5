"""The fluid engine against written-out times, a token-by-token reference, and random orders."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import small_costs
from token_engine import TokenEngine, Turn

from rollart.sim.attempt import Job
from rollart.sim.costs import EngineCosts
from rollart.sim.engine import SimEngine
from rollart.sim.loop import Loop
from rollart.types import EngineId, TrajectoryId, Version

COSTS = small_costs()


class Rig:
    """One engine on a loop, and what it has completed."""

    def __init__(self, costs: EngineCosts = COSTS, *, reuse: bool = True) -> None:
        self.costs = costs
        self.loop = Loop()
        self.engine = SimEngine(EngineId("e"), costs=costs, loop=self.loop, reuse_prefixes=reuse)
        self.ended: dict[int, float] = {}
        self.jobs: dict[int, Job] = {}

    def submit(self, session: int, context: float, response: float) -> Job:
        job = Job(
            session=TrajectoryId(session), context=context, response=response, on_done=self._done
        )
        self.jobs[session] = job
        self.engine.submit(job)
        return job

    def _done(self, job: Job) -> None:
        assert job.session not in self.ended
        self.ended[job.session] = self.loop.now

    def run(self, until: float = float("inf")) -> None:
        """Go on until a time, or until nothing is left to happen."""
        if until < float("inf"):
            self.loop.after(until - self.loop.now, lambda: None)
        while self.loop.now < until and self.loop.step():
            pass

    def read_s(self, tokens: float, cached: float = 0.0) -> float:
        constants = self.costs.constants
        steps = tokens / constants.chunk_tokens
        return self.costs.prefill_s(tokens, cached=cached) + steps * constants.step_overhead_s


def test_one_job_takes_its_prefill_and_one_step_per_token():
    rig = Rig()
    job = rig.submit(1, 1000, 200)
    rig.run()
    expected = rig.read_s(1000) + 200 * COSTS.decode_s(1, cached=1000)
    assert rig.ended == {1: pytest.approx(expected, abs=1e-9)}
    assert (job.sampled, job.born, job.state) == (200, Version(0), "done")
    assert rig.engine.busy_s == pytest.approx(expected, abs=1e-9)
    assert rig.engine.in_flight == 0


def test_two_jobs_share_every_step():
    rig = Rig()
    rig.submit(1, 1000, 200)
    rig.submit(2, 1000, 200)
    rig.run()
    first = rig.read_s(1000)
    steps = 1000 / COSTS.constants.chunk_tokens
    second = first + rig.read_s(1000) + steps * COSTS.decode_s(1, cached=1000)
    both = COSTS.decode_s(2, cached=2000 + steps)
    end = second + (200 - steps) * both
    alone = COSTS.decode_s(1, cached=1000 + 200)
    assert rig.ended[1] == pytest.approx(end, abs=1e-9)
    assert rig.ended[2] == pytest.approx(end + steps * alone, rel=1e-3)


def test_a_pause_moves_every_end_by_its_length():
    plain, paused = Rig(), Rig()
    for rig in (plain, paused):
        rig.submit(1, 1000, 200)
        rig.submit(2, 500, 300)
    plain.run()
    paused.run(1.0)
    paused.engine.suspend()
    paused.run(8.0)
    assert paused.ended == {}
    paused.engine.resume()
    paused.run()
    assert paused.ended == {
        name: pytest.approx(end + 7.0, rel=1e-3) for name, end in plain.ended.items()
    }
    assert paused.engine.busy_s == pytest.approx(plain.engine.busy_s, rel=1e-3)


def test_resuming_an_engine_that_runs_changes_nothing():
    plain, resumed = Rig(), Rig()
    for rig in (plain, resumed):
        rig.submit(1, 1000, 200)
    plain.run()
    resumed.run(1.0)
    resumed.engine.resume()
    resumed.run()
    assert resumed.ended[1] == pytest.approx(plain.ended[1], rel=1e-3)


def test_keys_and_values_that_do_not_fit_make_jobs_wait():
    rig = Rig()
    half = COSTS.capacity_tokens * 0.6
    rig.submit(1, half - 100, 100)
    rig.submit(2, half - 100, 100)
    rig.run()
    one = rig.read_s(half - 100) + 100 * COSTS.decode_s(1, cached=half - 100)
    assert rig.ended == {1: pytest.approx(one, abs=1e-9), 2: pytest.approx(2 * one, abs=1e-9)}


def test_a_job_larger_than_the_memory_runs_alone():
    rig = Rig()
    rig.submit(1, 100.5, 10.25)
    rig.submit(2, COSTS.capacity_tokens + 1, 10)
    rig.submit(3, 100, 10)
    rig.run()
    assert list(rig.ended) == [1, 2, 3]


def test_an_abort_frees_room_and_tells_what_was_sampled():
    rig = Rig()
    half = COSTS.capacity_tokens * 0.6
    long = rig.submit(1, half - 1000, 1000)
    rig.submit(2, half - 100, 100)
    step_s = COSTS.decode_s(1, cached=half - 1000)
    rig.run(rig.read_s(half - 1000) + 400 * step_s)
    assert rig.engine.abort(long) == pytest.approx(400)
    began = rig.loop.now
    rig.run()
    one = rig.read_s(half - 100) + 100 * COSTS.decode_s(1, cached=half - 100)
    assert rig.ended == {2: pytest.approx(began + one)}


@pytest.mark.parametrize("at_s", [0.0, 0.01, 5.0])
def test_an_aborted_job_may_be_waiting_unread_read_or_running(at_s):
    rig = Rig()
    for session in range(4):
        rig.submit(session, COSTS.capacity_tokens / 3.5, 5000)
    rig.run(at_s)
    for session in (3, 2, 1, 0):
        rig.engine.abort(rig.jobs[session])
    assert rig.engine.in_flight == 0
    rig.run()
    assert rig.ended == {}
    rig.submit(9, COSTS.capacity_tokens - 10, 10)
    rig.run()
    assert list(rig.ended) == [9]


def test_a_kept_prefix_leaves_only_the_new_tokens_to_read():
    rig = Rig()
    rig.submit(1, 1000, 100)
    rig.run()
    began = rig.loop.now
    rig.submit(1, 1300, 100)
    rig.ended.clear()
    rig.run()
    expected = rig.read_s(200, cached=1100) + 100 * COSTS.decode_s(1, cached=1300)
    assert rig.ended[1] - began == pytest.approx(expected, abs=1e-9)
    usage = rig.engine.usage
    assert (usage.prefill_tokens, usage.reused_tokens) == (1200, 1100)


def test_without_reuse_everything_is_read_again():
    rig = Rig(reuse=False)
    rig.submit(1, 1000, 100)
    rig.run()
    rig.ended.clear()
    rig.submit(1, 1300, 100)
    rig.run()
    assert (rig.engine.usage.prefill_tokens, rig.engine.usage.reused_tokens) == (2300, 0)


def test_an_idle_prefix_gives_way_to_a_job_and_is_read_again():
    rig = Rig()
    rig.submit(1, 1000, 100)
    rig.run()
    rig.submit(2, COSTS.capacity_tokens - 500, 100)
    rig.run()
    read = rig.engine.usage.prefill_tokens
    rig.ended.clear()
    rig.engine.forget(TrajectoryId(2))
    rig.submit(1, 1300, 100)
    rig.run()
    assert rig.engine.usage.prefill_tokens - read == 1300


def test_the_least_recently_used_prefix_goes_first():
    rig = Rig()
    third = COSTS.capacity_tokens / 3
    for session in (1, 2):
        rig.submit(session, third - 100, 100)
        rig.run()
    rig.ended.clear()
    rig.submit(3, 1.5 * third - 100, 100)
    rig.run()
    before = rig.engine.usage.prefill_tokens
    rig.ended.clear()
    rig.submit(2, third + 100, 100)
    rig.run()
    assert rig.engine.usage.prefill_tokens - before == pytest.approx(100)


def test_new_weights_make_what_runs_be_read_again():
    rig = Rig()
    job = rig.submit(1, 1000, 200)
    unread = rig.submit(2, 800, 10)
    rig.run(rig.read_s(1000) + 1e-6)
    rig.run(rig.loop.now + 2.0)
    sampled = rig.engine.usage.sampled_tokens
    rig.engine.suspend()
    rig.engine.update(Version(1), keep_cache=False)
    rig.engine.resume()
    rig.run()
    assert rig.engine.usage.recomputed_tokens > 1000
    assert rig.engine.usage.prefill_tokens == pytest.approx(
        1000 + 800 + rig.engine.usage.recomputed_tokens
    )
    assert (job.born, rig.engine.version) == (Version(0), Version(1))
    assert sampled > 0
    assert unread.sampled == 10


def test_cached_tokens_of_a_job_that_waits_to_be_read_are_worthless_under_new_weights():
    rig = Rig()
    rig.submit(1, 1000, 100)
    rig.run()
    rig.ended.clear()
    rig.submit(2, 5000, 10)
    rig.submit(1, 1300, 100)
    rig.engine.suspend()
    rig.engine.update(Version(1), keep_cache=False)
    before = rig.engine.usage.prefill_tokens
    rig.engine.resume()
    rig.run()
    assert rig.engine.usage.prefill_tokens - before == 5000 + 1300
    assert rig.engine.usage.recomputed_tokens == 1100


def test_kept_caches_are_not_read_again():
    rig = Rig()
    rig.submit(1, 1000, 200)
    rig.run(1.0)
    rig.engine.suspend()
    rig.engine.update(Version(1), keep_cache=True)
    rig.engine.resume()
    rig.run()
    assert rig.engine.usage.prefill_tokens == 1000
    assert rig.engine.version == Version(1)


def test_evicted_jobs_keep_what_they_sampled_and_go_on_elsewhere():
    rig, other = Rig(), Rig()
    job = rig.submit(1, 1000, 200)
    rig.submit(2, 500, 50)
    rig.run(1.0)
    evicted = rig.engine.evict()
    assert {each.session for each in evicted} == {1, 2} - set(rig.ended)
    assert rig.engine.in_flight == 0
    kept = job.sampled
    assert 0 < kept < 200
    job.on_done = other._done  # pyright: ignore[reportPrivateUsage]
    other.engine.submit(job)
    other.run()
    expected = other.read_s(1000 + kept) + (200 - kept) * COSTS.decode_s(1, cached=1000 + kept)
    assert other.ended[1] == pytest.approx(expected)
    assert job.born == Version(0)


def test_busy_intervals_are_told_and_do_not_overlap():
    rig = Rig()
    told: list[tuple[float, float]] = []
    rig.engine.watch(lambda begin, end: told.append((begin, end)))
    rig.submit(1, 1000, 100)
    rig.run()
    rig.run(rig.loop.now + 10)
    rig.submit(2, 1000, 5000)
    rig.run(rig.loop.now + 1)
    rig.engine.flush()
    assert len(told) == 2
    assert all(a[1] <= b[0] for a, b in pairwise(told))
    assert sum(end - begin for begin, end in told) == pytest.approx(rig.engine.busy_s)


requests = st.tuples(st.floats(0, 20), st.integers(1, 6000), st.integers(20, 1500))


@settings(max_examples=25, deadline=None)
@given(st.lists(requests, min_size=1, max_size=8))
def test_the_fluid_ends_within_three_percent_of_a_token_by_token_engine(turns):
    costs = small_costs(chunk_tokens=256, memory_share=0.24)
    wanted = [
        Turn(name=name, arrives_s=at, context=context, response=response)
        for name, (at, context, response) in enumerate(turns)
    ]
    reference = TokenEngine(costs=costs, turns=wanted).run()
    rig = Rig(costs)
    for turn in wanted:
        rig.loop.after(
            turn.arrives_s,
            lambda turn=turn: rig.submit(turn.name, turn.context, turn.response),
        )
    rig.run()
    assert rig.ended.keys() == reference.keys()
    for turn in wanted:
        took = reference[turn.name] - turn.arrives_s
        assert rig.ended[turn.name] - turn.arrives_s == pytest.approx(took, rel=0.03, abs=0.1)


actions = st.tuples(
    st.sampled_from(["submit", "abort", "suspend", "resume", "update", "evict", "forget"]),
    st.integers(0, 9),
    st.floats(0, 3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(actions, max_size=40))
def test_no_order_loses_a_job_or_ends_one_early(orders):
    costs = small_costs(memory_share=0.22)
    rig = Rig(costs)
    fastest_s = costs.decode_s(1, cached=0)
    submitted: dict[int, float] = {}
    stopped: set[int] = set()
    suspended, session = False, 0
    for what, number, wait_s in orders:
        rig.run(rig.loop.now + wait_s)
        running = sorted(submitted.keys() - rig.ended.keys() - stopped)
        if what == "submit":
            session += 1
            submitted[session] = rig.loop.now
            rig.submit(session, 300 * number, 10 + 50 * number)
        elif what == "abort" and running:
            chosen = running[number % len(running)]
            sampled = rig.engine.abort(rig.jobs[chosen])
            assert -1e-6 <= sampled <= rig.jobs[chosen].response + 1e-6
            stopped.add(chosen)
        elif what == "evict":
            assert sorted(job.session for job in rig.engine.evict()) == running
            stopped.update(running)
        elif what == "update" and suspended:
            rig.engine.update(Version(rig.engine.version + 1), keep_cache=number % 2 == 0)
        elif what in ("suspend", "resume"):
            suspended = what == "suspend"
            getattr(rig.engine, what)()
        elif what == "forget" and rig.ended:
            rig.engine.forget(TrajectoryId(max(rig.ended)))
        assert rig.engine.in_flight == len(submitted) - len(rig.ended) - len(stopped)
    rig.engine.resume()
    rig.run()
    assert rig.ended.keys() == submitted.keys() - stopped
    for name, end in rig.ended.items():
        assert end - submitted[name] >= rig.jobs[name].response * fastest_s * 0.999
    done = sum(rig.jobs[name].response for name in rig.ended)
    kept = sum(rig.jobs[name].sampled for name in stopped)
    assert rig.engine.usage.sampled_tokens == pytest.approx(done + kept, rel=1e-6, abs=1e-3)


def test_a_slower_gpu_never_ends_anything_earlier():
    ends: list[dict[int, float]] = []
    for gpu in (COSTS.gpu, replace(COSTS.gpu, dense_tflops=500.0, hbm_tb_s=2.0)):
        rig = Rig(EngineCosts(model=COSTS.model, gpu=gpu, tp=1))
        for session in range(6):
            rig.submit(session, 500 * session + 1, 100 + session)
        rig.run()
        ends.append(rig.ended)
    fast, slow = ends
    assert all(fast[name] < slow[name] for name in fast)
