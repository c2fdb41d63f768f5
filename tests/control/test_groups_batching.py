import pytest

from rollart.control.groups import ReadyQueue
from rollart.control.rules import Batching
from rollart.errors import ConfigError


def filled(rule, *born):
    """Return a queue with one group for each version named, numbered in completion order."""
    queue = ReadyQueue(rule)
    for group, version in enumerate(born):
        queue.push(group, born=version)
    return queue


def test_groups_born_of_the_oldest_weights_are_taken_first():
    queue = filled(Batching(groups_per_step=2), 3, 1, 2, 1)
    assert queue.take(lambda _: True) == [1, 3]
    assert queue.take(lambda _: True) == [2, 0]


def test_groups_may_be_taken_in_the_order_they_finished():
    queue = filled(Batching(groups_per_step=2, order="finished"), 3, 1, 2, 1)
    assert queue.take(lambda _: True) == [0, 1]


def test_groups_no_longer_ready_are_skipped():
    queue = filled(Batching(groups_per_step=1), 0, 1, 2)
    assert queue.take(lambda group: group != 0) == [1]
    assert queue.take(lambda _: True) == [2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("groups_per_step", "batching.groups_per_step = 0: must be at least 1"),
        ("group_size", "batching.group_size = 0: must be at least 1"),
        ("min_members", "batching.min_members = 0: must be at least 1"),
    ],
)
def test_empty_groups_and_batches_are_refused(name, message):
    with pytest.raises(ConfigError) as error:
        Batching(**{name: 0})
    assert str(error.value) == message
