"""Invariants of the scheduler that can be seen from its state alone."""

from rollart.control.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """Assert every invariant; costs a pass over all state, so only tests and replay call it."""
    scheduler.syncer.check()
    attempts = scheduler.attempts.values()
    scheduler.slots.check({a.slot for a in attempts if a.state in ("running", "cancelling")})
    _check_counts(scheduler)
    _check_groups(scheduler)
    flying = [a.id for group in scheduler.groups.values() for a in group.flying.values()]
    held = [a.id for a in attempts if a.state not in ("cancelling", "discarded")]
    assert sorted(flying) == sorted(held)


def _check_counts(scheduler: Scheduler) -> None:
    states = [group.state for group in scheduler.groups.values()]
    admission = scheduler.admission
    assert states.count("rolling") == admission.rolling
    assert states.count("ready") == admission.ready
    assert states.count("training") + states.count("trained") == admission.consumed
    assert states.count("training") == len(scheduler.training)
    assert len(scheduler.ready_ages) == admission.ready
    assert len(scheduler.rolling_ages) <= admission.rolling


def _check_groups(scheduler: Scheduler) -> None:
    for group in scheduler.groups.values():
        assert not set(group.queued) & set(group.flying)
        assert not (set(group.queued) | set(group.flying)) & set(group.scored)
        if group.state != "rolling":
            assert not group.queued and not group.flying
        if group.state in ("rolling", "ready") and group.born is not None:
            assert scheduler.is_fresh(group.born)
