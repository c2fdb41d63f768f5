"""Invariants of the scheduler that can be seen from its state alone."""

from rollart.control.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """Assert every invariant; costs a pass over all state, so only tests and replay call it."""
    groups = scheduler.cohort.groups.values()
    lender = scheduler.serving.lender
    scheduler.serving.syncer.check()
    scheduler.cohort.check()
    scheduler.flights.check(groups)
    scheduler.adapter.check()
    admission, adapter = scheduler.cohort.admission, scheduler.adapter
    assert admission.staleness.alpha == adapter.alpha.level <= scheduler.bound.alpha
    assert admission.redundancy.extra_groups == adapter.extra_groups.level
    assert not (lender.is_away and scheduler.training)
    if lender.is_serving:
        if scheduler.rules.mode.update == "at_once":
            assert 0 <= scheduler.optimizer - lender.version <= scheduler.bound.alpha
            assert scheduler.served <= lender.version
        else:
            assert lender.version == scheduler.served
    for group in groups:
        assert not set(group.queued) & set(group.flying)
        assert not set(group.unscored) & set(group.scored)
        if group.state != "rolling":
            assert not group.unscored
        if group.state in ("rolling", "ready") and group.born is not None:
            assert scheduler.is_fresh(group.born)
