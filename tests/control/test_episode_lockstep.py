from rollart.control.episode import LockStep


def test_episodes_go_on_when_all_have_arrived_in_id_order():
    gate = LockStep()
    gate.join([1, 2, 3])
    assert [gate.arrive(id_) for id_ in (3, 1, 2)] == [(), (), (1, 2, 3)]
    assert [gate.arrive(id_) for id_ in (2, 3, 1)] == [(), (), (1, 2, 3)]


def test_one_that_leaves_is_not_waited_for():
    gate = LockStep()
    gate.join([1, 2, 3])
    assert [gate.arrive(1), gate.arrive(2), gate.leave(3)] == [(), (), (1, 2)]


def test_one_that_arrived_and_leaves_is_not_released():
    gate = LockStep()
    gate.join([1, 2])
    assert [gate.arrive(1), gate.leave(1), gate.arrive(2), gate.leave(2)] == [(), (), (2,), ()]
