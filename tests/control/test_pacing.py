from rollart.control.batching import Batching
from rollart.control.cohort import Cohort
from rollart.control.modes import AREAL, ROLLART
from rollart.control.pacing import Hold
from rollart.control.rules import Rules
from rollart.control.staleness import Staleness


def hold_of(at_bound, *, mode=ROLLART):
    """Return a hold and groups of which two, born of 0, must train by version 1."""
    bound = Staleness(alpha=1, at_bound=at_bound, patience_s=10.0)
    batching = Batching(groups_per_step=1, group_size=1)
    rules = Rules(steps=9, mode=mode, batching=batching, staleness=bound)
    cohort = Cohort(rules, bound=bound)
    for _ in range(2):
        cohort.birth(cohort.open(), 0)
    return Hold(rules, bound=bound), cohort


def test_patience_counts_from_the_moment_the_step_could_begin():
    hold, cohort = hold_of("pace")
    held = [hold.holds(cohort, optimizer=0, now=now) for now in (5.0, 14.9, 15.0)]
    assert (held, hold.until_s) == ([True, True, False], 15.0)


def test_each_step_has_its_own_patience():
    hold, cohort = hold_of("pace")
    hold.holds(cohort, optimizer=0, now=5.0)
    hold.end()
    assert hold.until_s is None
    hold.holds(cohort, optimizer=0, now=7.0)
    assert hold.until_s == 17.0


def test_waiting_has_no_end():
    hold, cohort = hold_of("wait")
    assert (hold.holds(cohort, optimizer=0, now=1e9), hold.until_s) == (True, None)


def test_no_step_waits_where_work_is_dropped_or_never_too_old():
    for hold, cohort in (hold_of("drop"), hold_of("wait", mode=AREAL)):
        assert not hold.is_wanted(cohort, optimizer=0)
