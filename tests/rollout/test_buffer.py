import pytest
from records import record

from rollart.errors import InvariantError
from rollart.rollout.buffer import Buffer
from rollart.types import Trajectory, TrajectoryId


def filled(*records: Trajectory, oldest: int = 0) -> Buffer:
    buffer = Buffer(lambda born: born >= oldest)
    for each in records:
        buffer.put(each)
    return buffer


def test_groups_are_taken_in_the_order_asked_for_and_only_once():
    one, two, three = record(1), record(2), record(3)
    buffer = filled(one, two, three)
    assert buffer.take([[TrajectoryId(3)], [TrajectoryId(1)]]) == [[three], [one]]
    assert len(buffer) == 1
    with pytest.raises(KeyError):
        buffer.take([[TrajectoryId(1)]])


def test_what_is_got_stays_and_what_is_dropped_goes():
    one = record(1)
    buffer = filled(one)
    assert buffer.get(TrajectoryId(1)) == one
    buffer.drop([TrajectoryId(1)])
    assert len(buffer) == 0


def test_a_record_is_put_once():
    with pytest.raises(InvariantError, match="trajectory 1 was put twice"):
        filled(record(1), record(1))


def test_the_staleness_bound_is_checked_once_more_when_a_batch_is_taken():
    buffer = filled(record(1, born=4), record(2, born=3), oldest=4)
    with pytest.raises(InvariantError, match="trajectory 2 is too old to train on"):
        buffer.take([[TrajectoryId(1), TrajectoryId(2)]])
