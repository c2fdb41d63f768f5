from dataclasses import dataclass

import pytest

from rollart.control.attempts import AttemptTable
from rollart.control.groups import GroupTable
from rollart.control.rules import AREAL, ROLLART, Batching, Redundancy, Rules
from rollart.control.staleness import Staleness
from rollart.control.step_gate import StepGate
from rollart.control.task_order import AttemptDurations

USUAL_S = 2.0
LATE_S = 2 * USUAL_S
PATIENCE_S = 10.0


@dataclass
class Scene:
    """Groups of one member that run, all born of version 0, and a step that could begin."""

    gate: StepGate
    groups: GroupTable
    usual: AttemptDurations

    def held(self, *times, optimizer=1):
        """Say at which of these times the step waits."""
        return [now for now in times if self.gate.must_wait(optimizer=optimizer, now=now)]


def scene(*launched_s, at_bound="pace", alpha=1, extra=0, mode=ROLLART, usual_s=USUAL_S, **bound):
    """Return groups launched at these times, and a batch of one group."""
    bound = Staleness(alpha=alpha, at_bound=at_bound, patience_s=PATIENCE_S, **bound)
    rules = Rules(
        steps=9,
        mode=mode,
        batching=Batching(groups_per_step=1, group_size=1),
        staleness=bound,
        redundancy=Redundancy(extra_groups=extra),
    )
    group_table, usual = GroupTable(rules, bound=bound), AttemptDurations()
    attempt_table = AttemptTable(rules, durations=group_table.dispatcher.durations, usual=usual)
    for slot, at_s in enumerate(launched_s):
        group = group_table.open()
        attempt_table.enqueue(group)
        attempt_table.launch(slot, at_s)
        group_table.birth(group, 0)
    usual.note("", usual_s)
    return Scene(StepGate(rules, bound=bound, groups=group_table, usual=usual), group_table, usual)


def test_a_step_waits_while_work_is_on_time():
    assert scene(3.0).held(3.0, 6.9, 3.0 + LATE_S, 9.0) == [3.0, 6.9]


def test_a_step_waits_for_the_last_that_is_on_time():
    it = scene(0.0, 3.0, 1.0)
    assert it.held(3.0, 6.9, 7.0) == [3.0, 6.9]
    assert it.gate.until_s == 7.0


def test_a_step_does_not_wait_for_work_that_hangs():
    assert scene(0.0).held(LATE_S) == []


def test_a_step_waits_no_longer_than_its_patience():
    assert scene(0.0, usual_s=99.0).held(5.0, 14.9, 15.0) == [5.0, 14.9]


def test_patience_does_not_begin_again_before_the_step_has_begun():
    it = scene(0.0, usual_s=99.0)
    it.held(5.0)
    assert it.held(15.0, 16.0) == []
    assert it.gate.end(17.0) == PATIENCE_S
    assert it.held(17.0, 26.9, 27.0) == [17.0, 26.9]


def test_a_step_ends_its_wait_when_all_but_the_hung_have_come():
    it = scene(0.0, 3.0)
    assert it.held(4.5)
    it.groups.complete(it.groups.by_id[1])
    assert it.groups.take()
    assert it.held(5.0) == []


def test_a_step_does_not_wait_for_a_group_that_was_dropped():
    it = scene(0.0, 3.0)
    assert it.held(4.5)
    it.groups.remove(it.groups.by_id[1])
    assert it.held(5.0) == []


def test_what_a_later_step_can_take_is_not_waited_for():
    """Of three groups two hang; the third finds its place in the step after this."""
    assert scene(0.0, 0.0, 3.0, alpha=2).held(4.5) == []


def test_groups_in_excess_are_left_behind():
    assert scene(3.0, extra=1).held(3.0) == []
    it = scene(3.0, 3.5, extra=1)
    assert it.held(4.0, 6.9, 7.0) == [4.0, 6.9]


def test_waiting_has_no_end():
    it = scene(0.0, at_bound="wait", extra=1)
    assert it.held(1e9) == [1e9]
    assert it.gate.until_s is None


@pytest.mark.parametrize(
    "options",
    [{"at_bound": "drop"}, {"at_bound": "wait", "mode": AREAL}, {"counting": "serving"}],
    ids=["dropped", "never too old", "aged by the wait"],
)
def test_no_step_waits_where_work_is(options):
    it = scene(3.0, **options)
    assert (it.held(3.0), it.gate.is_on) == ([], False)


def test_a_step_that_begins_at_once_has_not_waited():
    assert scene().gate.end(5.0) == 0.0


def test_a_late_group_stays_late_when_it_is_found_to_be_older():
    it = scene(0.0, 3.0)
    assert it.held(4.5)
    for group in it.groups.by_id.values():
        it.groups.birth(group, -1)
    assert list(it.groups.late_ages) == [0]
    it.groups.check()


def test_a_wait_that_has_ended_does_not_begin_again_before_the_step_has_begun():
    it = scene(3.0)
    assert it.held(3.0)
    it.groups.complete(it.groups.by_id[0])
    assert it.groups.take()
    assert it.held(4.0) == []
    it.groups.birth(it.groups.open(), 0)
    assert it.held(5.0) == []
    assert it.gate.end(9.0) == 1.0


def test_of_several_versions_in_danger_the_latest_work_is_waited_for():
    it = scene(3.0, 5.0, 6.0, alpha=2)
    it.groups.by_id[0].born = None  # born again, as of the version before
    it.groups.rolling_ages.remove(0, born=0)
    it.groups.birth(it.groups.by_id[0], -1)
    assert it.held(6.0) == [6.0]
    assert it.gate.until_s == 5.0 + LATE_S


def test_each_domain_has_its_own_time():
    it = scene(0.0, 0.0)
    it.groups.by_id[1].domain = "slow"
    it.usual.note("slow", 2 * USUAL_S)
    assert it.held(LATE_S) == [LATE_S]
    assert (list(it.groups.late_ages), it.gate.until_s) == ([0], 2 * LATE_S)
