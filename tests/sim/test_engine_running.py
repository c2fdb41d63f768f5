"""Sequences that advance together and end when the clock reaches their end."""

from rollart.sim.attempt import Job
from rollart.sim.engine import RunningJobs
from rollart.types import TrajectoryId


def job(session: int, *, context: float = 10.0, response: float = 5.0) -> Job:
    return Job(
        session=TrajectoryId(session), context=context, response=response, on_done=lambda _: None
    )


def test_nothing_runs_at_first():
    running = RunningJobs()
    assert (running.left(), running.take_done(), running.advance(1.0)) == (None, [], 0.0)


def test_a_sequence_is_done_when_the_clock_has_grown_by_its_tokens():
    running, short, long = RunningJobs(), job(1, response=3.0), job(2, response=8.0)
    running.start(short)
    running.start(long)
    assert (running.left(), running.cached) == (3.0, 20.0)
    assert running.advance(3.0) == 6.0
    assert running.take_done() == [short]
    assert (short.state, short.sampled, long.state) == ("done", 3.0, "running")
    assert (running.left(), running.cached) == (5.0, 13.0)


def test_the_clock_meets_an_end_exactly():
    running, one = RunningJobs(), job(1, response=0.3)
    running.start(one)
    running.advance(0.1)
    running.advance(0.1)
    running.advance(0.09999999)
    assert running.take_done() == []
    running.reach_end()
    assert (running.take_done(), running.clock) == ([one], 0.3)


def test_an_interrupted_sequence_keeps_its_tokens_and_its_end_is_skipped():
    running, stopped, other = RunningJobs(), job(1, response=4.0), job(2, response=6.0)
    running.start(stopped)
    running.start(other)
    running.advance(1.0)
    running.interrupt(stopped)
    assert (stopped.sampled, running.left(), list(running.jobs.values())) == (1.0, 5.0, [other])
    running.start(stopped)
    assert running.left() == 3.0
    running.interrupt(stopped)
    running.advance(5.0)
    assert running.take_done() == [other]
    assert (running.left(), running.cached) == (None, 0.0)


def test_what_ends_together_is_let_go_in_the_order_it_started():
    running, jobs = RunningJobs(), [job(n) for n in (3, 1, 2)]
    for each in jobs:
        running.start(each)
    running.advance(5.0)
    assert running.take_done() == jobs
