from dataclasses import replace

from rollart.control.groups import Admission
from rollart.control.rules import ONE_OFF, ROLLART, SYNC, Batching, Redundancy
from rollart.control.staleness import Staleness


def admission(mode, *, alpha=1, extra_groups=0, **counts):
    """Return an admission of two groups a step."""
    return Admission(
        mode=mode,
        batching=Batching(groups_per_step=2),
        staleness=mode.staleness(Staleness(alpha=alpha)),
        redundancy=Redundancy(extra_groups=extra_groups),
        **counts,
    )


def opened(door, *, steps_left=100, served=0):
    """Open as many groups as the door admits; return how many."""
    count = 0
    while door.may_open(steps_left=steps_left, served=served):
        door.open()
        count += 1
    return count


def test_a_window_admits_what_the_trainer_consumes_within_alpha_steps():
    assert opened(admission(ROLLART, alpha=2)) == 6
    assert opened(admission(ROLLART, alpha=2, extra_groups=3)) == 9
    assert opened(admission(ROLLART, alpha=2, rolling=1, ready=2, consumed=2)) == 1


def test_no_group_starts_that_the_remaining_steps_could_not_train():
    assert opened(admission(ROLLART, alpha=5), steps_left=1) == 2
    assert opened(admission(ROLLART, alpha=5, ready=1, extra_groups=1), steps_left=1) == 1
    finished = Redundancy(extra_groups=1, choice="finished")
    door = admission(ROLLART, alpha=5, ready=1)
    assert opened(replace(door, redundancy=finished), steps_left=1) == 2
    assert opened(admission(ROLLART), steps_left=0) == 0
    assert opened(admission(SYNC, ready=2), steps_left=1) == 0


def test_an_iteration_admits_one_batch_and_its_extra_groups():
    assert opened(admission(SYNC)) == 2
    assert opened(admission(SYNC, extra_groups=1)) == 3


def test_the_groups_still_rolling_are_surplus_when_an_iteration_is_complete():
    door = admission(SYNC, extra_groups=1)
    opened(door)
    assert [door.complete(), door.complete()] == [False, True]
    assert (door.rolling, door.ready, door.is_iteration_complete) == (1, 2, True)
    assert opened(door, served=9) == 0


def test_in_a_window_no_group_is_surplus():
    door = admission(ROLLART)
    opened(door)
    assert [door.complete() for _ in range(4)] == [False] * 4


def test_the_next_iteration_starts_when_weights_recent_enough_are_served():
    for mode, needed in ((SYNC, 1), (ONE_OFF, 0)):
        door = admission(mode)
        opened(door)
        door.complete()
        door.complete()
        assert opened(door, served=needed - 1) == 0
        assert (opened(door, served=needed), door.iteration) == (2, 1)
