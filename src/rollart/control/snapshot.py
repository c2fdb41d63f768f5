"""Snapshot: what a run needs of its scheduler to go on later, as plain JSON.

Attempts in flight are not saved but made again: their member goes back to the queue under the
same attempt number, and so with the same seed. Complete groups are kept whole, those just handed
to the trainer included, because the weights saved beside the snapshot have not seen them.
"""

from typing import TypedDict

from rollart.control.groups import Group
from rollart.control.scheduler import Rules, Scheduler
from rollart.types import GroupId, TrajectoryId, Version


class GroupRecord(TypedDict):
    """One group that had not been trained on."""

    id: int
    born: int | None
    queued: list[tuple[int, int]]
    scored: list[tuple[int, int, float]]
    complete: bool
    members: int


class SchedulerRecord(TypedDict):
    """A scheduler between two events."""

    version: int
    next_group: int
    next_trajectory: int
    failures: int
    filtered: int
    iteration: int
    iteration_complete: int
    groups: list[GroupRecord]


def take_snapshot(scheduler: Scheduler) -> SchedulerRecord:
    """Record a scheduler's state."""
    admission = scheduler.admission
    return SchedulerRecord(
        version=scheduler.optimizer,
        next_group=scheduler.next_group,
        next_trajectory=scheduler.next_trajectory,
        failures=scheduler.failures,
        filtered=scheduler.filtered,
        iteration=admission.iteration,
        iteration_complete=admission.iteration_complete,
        groups=[_record(g) for g in scheduler.groups.values() if g.state != "trained"],
    )


def _record(group: Group) -> GroupRecord:
    queued = group.queued | {member: a.number for member, a in group.flying.items()}
    return GroupRecord(
        id=group.id,
        born=group.born if group.scored else None,
        queued=sorted(queued.items()),
        scored=sorted((member, *value) for member, value in group.scored.items()),
        complete=group.state != "rolling",
        members=group.members,
    )


def restore(rules: Rules, record: SchedulerRecord) -> Scheduler:
    """Return a scheduler that goes on from a snapshot; its next event is `RunStarted`."""
    scheduler = Scheduler(rules)
    scheduler.optimizer = scheduler.published = Version(record["version"])
    scheduler.next_group = record["next_group"]
    scheduler.next_trajectory = record["next_trajectory"]
    scheduler.failures = record["failures"]
    scheduler.filtered = record["filtered"]
    scheduler.admission.iteration = record["iteration"]
    scheduler.admission.iteration_complete = record["iteration_complete"]
    for saved in record["groups"]:
        _restore_group(scheduler, saved)
    return scheduler


def _restore_group(scheduler: Scheduler, saved: GroupRecord) -> None:
    group = Group(
        id=GroupId(saved["id"]),
        state="ready" if saved["complete"] else "rolling",
        born=None if saved["born"] is None else Version(saved["born"]),
        queued=dict(saved["queued"]),
        members=saved["members"],
        scored={member: (TrajectoryId(id_), reward) for member, id_, reward in saved["scored"]},
    )
    scheduler.groups[group.id] = group
    if not saved["complete"]:
        scheduler.admission.rolling += 1
        scheduler.queue.extend((group, member) for member in group.queued)
        if group.born is not None:
            scheduler.rolling_ages.add(group.id, born=group.born)
        return
    assert group.born is not None
    scheduler.admission.ready += 1
    scheduler.ready.push(group.id, born=group.born)
    scheduler.ready_ages.add(group.id, born=group.born)


def buffered(record: SchedulerRecord) -> list[TrajectoryId]:
    """Return the finished trajectories a snapshot counts on finding in the buffer."""
    return [TrajectoryId(id_) for group in record["groups"] for _, id_, _ in group["scored"]]
