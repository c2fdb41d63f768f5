"""The memory of an engine: reserved by jobs, and what is left holds prefixes."""

from rollart.sim.attempt import Job
from rollart.sim.engine import KvMemory
from rollart.types import TrajectoryId


def job(session: int, *, context: float, response: float, received: float = 0.0) -> Job:
    return Job(
        session=TrajectoryId(session),
        context=context,
        response=response,
        received=received,
        on_done=lambda _: None,
    )


def test_a_job_takes_room_for_all_its_tokens_and_waits_where_there_is_none():
    room = KvMemory(100.0)
    first, second = job(1, context=40, response=20), job(2, context=30, response=20)
    assert room.take(first)
    assert (room.take(second), room.used) == (False, 60.0)
    room.give_back(first, keep=0.0)
    assert (room.take(second), room.used) == (True, 50.0)


def test_a_job_larger_than_the_room_gets_it_alone():
    room = KvMemory(100.0)
    assert room.take(job(1, context=300, response=1))
    assert not room.take(job(2, context=1, response=1))


def test_a_prefix_that_was_kept_need_not_be_read_again():
    room = KvMemory(100.0)
    first, turn = job(1, context=10, response=10), job(1, context=30, response=10)
    room.take(first)
    room.give_back(first, keep=20.0)
    assert (room.used, room.idle_tokens) == (0.0, 20.0)
    assert room.take(turn)
    assert (turn.cached, room.used, room.idle_tokens) == (20.0, 40.0, 0.0)


def test_what_comes_with_a_job_counts_as_cached_up_to_its_context():
    room = KvMemory(100.0)
    whole = job(1, context=30, response=10, received=50.0)
    room.take(whole)
    assert whole.cached == 30.0


def test_prefixes_give_way_to_jobs_the_least_recently_used_first():
    room = KvMemory(100.0)
    for session in (1, 2, 3):
        turn = job(session, context=20, response=10)
        room.take(turn)
        room.give_back(turn, keep=30.0)
    assert room.idle_tokens == 90.0
    room.take(job(4, context=20, response=10))
    assert room.idle_tokens == 60.0
    assert [room.drop(TrajectoryId(session)) for session in (1, 2, 3)] == [0.0, 30.0, 30.0]


def test_prefixes_can_be_forgotten_together():
    room = KvMemory(100.0)
    turn = job(1, context=20, response=10)
    room.take(turn)
    room.give_back(turn, keep=30.0)
    room.clear()
    assert (room.idle_tokens, room.drop(TrajectoryId(1))) == (0.0, 0.0)
