from rollart.control.attempts import AttemptTable
from rollart.control.groups import Group
from rollart.control.rules import Batching, Redundancy, Retry, Rules
from rollart.control.task_order import AttemptDurations
from rollart.events import Cancel, Drop, Launch, Score
from rollart.seeds import derive_seed


def flights_of(members, *, launched=0, **rules):
    """Return flights with as many slots as members of their only group, and the group."""
    batching = Batching(groups_per_step=1, group_size=members)
    rules = Rules(**{"steps": 9, "batching": batching} | rules)
    flights = AttemptTable(rules, durations=AttemptDurations(), usual=AttemptDurations())
    flights.open_slots(members)
    group = Group(
        id=7, task=5, domain="game", queued=dict.fromkeys(range(members), 0), members=members
    )
    flights.enqueue(group)
    for _ in range(launched):
        flights.launch(flights.slots.take(0.0), 0.0)
    flights.check([group])
    return flights, group


def test_members_are_launched_in_the_order_they_were_queued():
    flights, group = flights_of(2)
    assert flights.launch(flights.slots.take(0.0), 0.0) == Launch(
        id=0, group=7, member=0, attempt=0, task=5, slot=0, seed=derive_seed(0, 7, 0, 0)
    )
    assert (group.queued, list(group.flying), flights.has_queued()) == ({1: 0}, [0], True)


def test_a_member_no_longer_wanted_is_not_launched():
    flights, group = flights_of(2)
    assert flights.stop(group, "surplus") == []
    assert not flights.has_queued()


def test_a_member_that_failed_goes_before_all_others_until_it_has_no_try_left():
    flights, group = flights_of(3, launched=1, retry=Retry(max_attempts=2))
    assert flights.retry(flights.fail(0, 1.0))
    assert (flights.queue[0], group.queued) == ((group, 0), {0: 1, 1: 0, 2: 0})
    flights.launch(flights.slots.take(1.0), 1.0)
    assert not flights.retry(flights.fail(1, 2.0))
    assert (flights.failures, flights.failures_in_a_row) == (2, 2)


def test_stopping_cancels_what_runs_and_drops_what_waits_for_a_score():
    flights, group = flights_of(3, launched=3)
    flights.await_score(flights.finish(0, 1.0), is_compared=False)
    assert flights.take_unscored() == [Score(ids=(0,))]
    flights.await_score(flights.finish(1, 1.0), is_compared=False)
    assert flights.stop(group, "surplus") == [
        Drop(ids=(0,), reason="surplus"),
        Drop(ids=(1,), reason="surplus"),
        Cancel(id=2, reason="surplus"),
    ]
    flights.check([group])
    states = {id_: attempt.state for id_, attempt in flights.attempts.items()}
    assert (states, flights.take_unscored()) == ({0: "discarded", 2: "cancelling"}, [])


def test_rivals_wait_for_the_last_of_their_group_and_are_scored_together():
    flights, group = flights_of(3, launched=3)
    for id_ in (2, 0):
        flights.await_score(flights.finish(id_, 1.0), is_compared=True)
        assert flights.compare(group) == []
    assert flights.take_unscored() == []
    flights.await_score(flights.finish(1, 1.0), is_compared=True)
    assert flights.compare(group) == []
    assert flights.take_unscored() == [Score(ids=(0, 1, 2), together=True)]
    flights.check([group])
    assert flights.compare(group) == []


def test_rivals_that_are_dropped_are_not_scored():
    flights, group = flights_of(2, launched=2)
    for id_ in (0, 1):
        flights.await_score(flights.finish(id_, 1.0), is_compared=True)
    assert flights.compare(group) == []
    drops = [Drop(ids=(0,), reason="surplus"), Drop(ids=(1,), reason="surplus")]
    assert flights.stop(group, "surplus") == drops
    assert (flights.take_unscored(), flights.attempts) == ([], {})


def test_flights_are_over_when_only_unwanted_scores_are_left():
    flights, group = flights_of(1, launched=1)
    flights.await_score(flights.finish(0, 1.0), is_compared=False)
    flights.take_unscored()
    assert not flights.are_over
    flights.stop(group, "run_finished")
    assert flights.are_over


def test_what_is_postponed_keeps_the_number_of_its_attempt():
    flights, group = flights_of(2, launched=1)
    assert flights.postpone(group, "interrupted") == [Cancel(id=0, reason="interrupted")]
    assert group.queued == {0: 0, 1: 0}


def test_an_overdue_attempt_gets_a_rival_and_its_slot_rests_once_it_is_overtaken():
    redundancy = Redundancy(hedge_after=2.0)
    flights, group = flights_of(2, launched=2, redundancy=redundancy)
    flights.finish(0, 1.0)
    assert flights.hedge(1.5) == 2.0
    flights.hedge(2.0)
    assert (flights.queue[0], group.queued) == ((group, 2), {2: 0})
    flights.stop(group, "surplus")
    flights.cancelled(1, 3.0)
    assert (flights.slots.taken, flights.failures, flights.failures_in_a_row) == (0, 1, 0)
