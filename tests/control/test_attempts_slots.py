from rollart.control.attempts import Slots


def test_slots_are_taken_in_the_order_they_became_free():
    slots = Slots(2)
    assert [slots.take(0.0), slots.take(0.0), slots.take(0.0)] == [0, 1, None]
    slots.give_back(1, healthy=True)
    slots.give_back(0, healthy=True)
    assert [slots.take(0.0), slots.take(0.0)] == [1, 0]
    slots.check({0, 1})


def test_a_resting_slot_returns_behind_the_others_when_its_time_has_come():
    slots = Slots(2)
    slots.take(0.0)
    slots.rest(0, until=5.0)
    assert (slots.next_return_s, slots.taken) == (5.0, 0)
    assert [slots.take(4.9), slots.take(4.9)] == [1, None]
    slots.give_back(1, healthy=True)
    assert [slots.take(5.0), slots.take(5.0), slots.next_return_s] == [1, 0, None]


def test_failures_in_a_row_are_forgotten_by_a_success_only():
    slots = Slots(1)
    slots.take(0.0)
    assert [slots.count_failure(0), slots.count_failure(0)] == [1, 2]
    slots.give_back(0, healthy=False)
    slots.take(0.0)
    assert slots.count_failure(0) == 3
    slots.give_back(0, healthy=True)
    slots.take(0.0)
    assert slots.count_failure(0) == 1


def test_a_spare_stands_in_for_a_slot_that_rests_and_no_more_run_than_before():
    slots = Slots(2, spares=1)
    assert [slots.take(0.0), slots.take(0.0), slots.take(0.0)] == [0, 1, None]
    slots.count_failure(0)
    slots.rest(0, until=5.0)
    assert [slots.take(1.0), slots.take(1.0), slots.next_return_s] == [2, None, None]
    slots.check({1, 2})
    slots.give_back(1, healthy=False)
    assert [slots.take(6.0), slots.take(6.0)] == [1, None]
    slots.give_back(2, healthy=True)
    slots.count_failure(1)
    slots.rest(1, until=9.0)
    assert [slots.take(6.0), slots.take(6.0)] == [2, 0]


def test_a_slot_that_failed_before_is_used_after_all_others():
    slots = Slots(2)
    slots.take(0.0)
    slots.count_failure(0)
    slots.give_back(0, healthy=False)
    assert [slots.take(0.0), slots.take(0.0)] == [1, 0]
