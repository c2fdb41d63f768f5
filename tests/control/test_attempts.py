from rollart.control.attempts import AttemptTable
from rollart.control.groups import Group
from rollart.control.rules import Batching, Redundancy, Retry, Rules
from rollart.control.task_order import AttemptDurations
from rollart.events import Cancel, Drop, Launch, Score
from rollart.seeds import derive_seed


def attempts_of(members, *, launched=0, **rules):
    """Return table with as many slots as members of their only group, and the group."""
    batching = Batching(groups_per_step=1, group_size=members)
    rules = Rules(**{"steps": 9, "batching": batching} | rules)
    table = AttemptTable(rules, durations=AttemptDurations(), usual=AttemptDurations())
    table.open_slots(members)
    group = Group(
        id=7, task=5, domain="game", queued=dict.fromkeys(range(members), 0), members=members
    )
    table.enqueue(group)
    for _ in range(launched):
        table.launch(table.slots.take(0.0), 0.0)
    table.check([group])
    return table, group


def test_members_are_launched_in_the_order_they_were_queued():
    table, group = attempts_of(2)
    assert table.launch(table.slots.take(0.0), 0.0) == Launch(
        id=0, group=7, member=0, attempt=0, task=5, slot=0, seed=derive_seed(0, 7, 0, 0)
    )
    assert (group.queued, list(group.in_flight), table.has_queued()) == ({1: 0}, [0], True)


def test_a_member_no_longer_wanted_is_not_launched():
    table, group = attempts_of(2)
    assert table.stop(group, "surplus") == []
    assert not table.has_queued()


def test_a_member_that_failed_goes_before_all_others_until_it_has_no_try_left():
    table, group = attempts_of(3, launched=1, retry=Retry(max_attempts=2))
    assert table.retry(table.fail(0, 1.0))
    assert (table.queue[0], group.queued) == ((group, 0), {0: 1, 1: 0, 2: 0})
    table.launch(table.slots.take(1.0), 1.0)
    assert not table.retry(table.fail(1, 2.0))
    assert (table.failures, table.failures_in_a_row) == (2, 2)


def test_stopping_cancels_what_runs_and_drops_what_waits_for_a_score():
    table, group = attempts_of(3, launched=3)
    table.await_score(table.finish(0, 1.0), is_compared=False)
    assert table.take_unscored() == [Score(ids=(0,))]
    table.await_score(table.finish(1, 1.0), is_compared=False)
    assert table.stop(group, "surplus") == [
        Drop(ids=(0,), reason="surplus"),
        Drop(ids=(1,), reason="surplus"),
        Cancel(id=2, reason="surplus"),
    ]
    table.check([group])
    states = {id_: attempt.state for id_, attempt in table.by_id.items()}
    assert (states, table.take_unscored()) == ({0: "discarded", 2: "cancelling"}, [])


def test_rivals_wait_for_the_last_of_their_group_and_are_scored_together():
    table, group = attempts_of(3, launched=3)
    for id_ in (2, 0):
        table.await_score(table.finish(id_, 1.0), is_compared=True)
        assert table.compare(group) == []
    assert table.take_unscored() == []
    table.await_score(table.finish(1, 1.0), is_compared=True)
    assert table.compare(group) == []
    assert table.take_unscored() == [Score(ids=(0, 1, 2), together=True)]
    table.check([group])
    assert table.compare(group) == []


def test_rivals_that_are_dropped_are_not_scored():
    table, group = attempts_of(2, launched=2)
    for id_ in (0, 1):
        table.await_score(table.finish(id_, 1.0), is_compared=True)
    assert table.compare(group) == []
    drops = [Drop(ids=(0,), reason="surplus"), Drop(ids=(1,), reason="surplus")]
    assert table.stop(group, "surplus") == drops
    assert (table.take_unscored(), table.by_id) == ([], {})


def test_attempts_are_over_when_only_unwanted_scores_are_left():
    table, group = attempts_of(1, launched=1)
    table.await_score(table.finish(0, 1.0), is_compared=False)
    table.take_unscored()
    assert not table.are_over
    table.stop(group, "run_finished")
    assert table.are_over


def test_what_is_postponed_keeps_the_number_of_its_attempt():
    table, group = attempts_of(2, launched=1)
    assert table.postpone(group, "interrupted") == [Cancel(id=0, reason="interrupted")]
    assert group.queued == {0: 0, 1: 0}


def test_an_overdue_attempt_gets_a_rival_and_its_slot_rests_once_it_is_overtaken():
    redundancy = Redundancy(hedge_after=2.0)
    table, group = attempts_of(2, launched=2, redundancy=redundancy)
    table.finish(0, 1.0)
    assert table.hedge(1.5) == 2.0
    table.hedge(2.0)
    assert (table.queue[0], group.queued) == ((group, 2), {2: 0})
    table.stop(group, "surplus")
    table.cancelled(1, 3.0)
    assert (table.slots.taken, table.failures, table.failures_in_a_row) == (
        0,
        1,
        0,
    )
