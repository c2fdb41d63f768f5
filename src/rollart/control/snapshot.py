"""Snapshot: what a run needs of its scheduler to be resumed, as plain JSON.

Attempts in flight are not saved but made again: their member goes back to the queue under the
same attempt number, and so with the same seed. Complete groups are kept whole, those just handed
to the trainer included, because the weights saved beside the snapshot have not seen them.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypedDict, get_type_hints

from rollart.control.adaptive import AdapterRecord
from rollart.control.groups import Group
from rollart.control.rules import Rules, RuleSections, mode_named, one_domain
from rollart.control.scheduler import Scheduler
from rollart.control.task_order import DispatchRecord, DomainOf, TaskKind, TaskMix
from rollart.types import GroupId, Json, TrajectoryId, Version


def encode_rules(rules: Rules, tasks: TaskMix | None = None) -> dict[str, Json]:
    """Return the rules, and the stream whose domains they look at, as a log's header keeps them."""
    sections = {name: asdict(section) for name, section in rules.sections.items()}
    encoded: dict[str, Json] = {"steps": rules.steps, "mode": rules.mode.name, **sections}
    if tasks is not None:
        kinds: list[Json] = [asdict(kind) for kind in tasks.kinds]
        encoded["tasks"] = {"seed": tasks.seed, "kinds": kinds}
    return encoded


def decode_rules(encoded: Mapping[str, Any], *, seed: int) -> Rules:
    """Return the rules that were encoded."""
    classes = get_type_hints(RuleSections)
    sections = {
        each.name: classes[each.name](**encoded[each.name]) for each in fields(RuleSections)
    }
    return Rules(steps=encoded["steps"], seed=seed, mode=mode_named(encoded["mode"]), **sections)


def decode_tasks(encoded: Mapping[str, Any]) -> TaskMix | None:
    """Return the stream that was encoded with the rules, if one was."""
    tasks = encoded.get("tasks")
    if tasks is None:
        return None
    kinds = [TaskKind(**kind) for kind in tasks["kinds"]]
    return TaskMix(kinds, seed=tasks["seed"])


def decode_domains(encoded: Mapping[str, Any]) -> DomainOf:
    """Return the domains of the stream that was encoded with the rules."""
    tasks = decode_tasks(encoded)
    return one_domain if tasks is None else tasks.domain


class GroupRecord(TypedDict):
    """One group that had not been trained on."""

    id: int
    task: int
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
    dispatch: DispatchRecord
    adapting: AdapterRecord
    groups: list[GroupRecord]


def take_snapshot(scheduler: Scheduler) -> SchedulerRecord:
    """Record a scheduler's state."""
    groups, attempts = scheduler.groups, scheduler.attempts
    return SchedulerRecord(
        version=scheduler.optimizer,
        next_group=groups.next_group,
        next_trajectory=attempts.next_trajectory,
        failures=attempts.failures,
        filtered=groups.filtered,
        dispatch=groups.dispatcher.record(),
        adapting=scheduler.adapter.record(),
        groups=[_record(g) for g in groups.by_id.values() if g.state != "trained"],
    )


def _record(group: Group) -> GroupRecord:
    return GroupRecord(
        id=group.id,
        task=group.task,
        born=group.born if group.scored else None,
        queued=sorted(group.unscored.items()),
        scored=sorted((member, *value) for member, value in group.scored.items()),
        complete=group.state != "rolling",
        members=group.members,
    )


def restore(
    rules: Rules, record: SchedulerRecord, *, domain_of: DomainOf = one_domain
) -> Scheduler:
    """Return a scheduler that continues from a snapshot; its next event is `RunStarted`."""
    scheduler = Scheduler(rules, domain_of=domain_of)
    scheduler.optimizer = scheduler.weights.published = Version(record["version"])
    groups, attempts = scheduler.groups, scheduler.attempts
    groups.next_group = record["next_group"]
    attempts.next_trajectory = record["next_trajectory"]
    attempts.failures = record["failures"]
    groups.filtered = record["filtered"]
    groups.dispatcher.restore(record["dispatch"])
    levels = scheduler.adapter.restore(record["adapting"])
    groups.admission.set_levels(alpha=levels.alpha, extra_groups=levels.extra_groups)
    for saved in record["groups"]:
        group = _restore_group(saved, domain_of)
        groups.restore(group)
        attempts.enqueue(group)
    groups.admission.resume(scheduler.optimizer)
    return scheduler


def _restore_group(saved: GroupRecord, domain_of: DomainOf) -> Group:
    return Group(
        id=GroupId(saved["id"]),
        task=saved["task"],
        domain=domain_of(saved["task"]),
        state="ready" if saved["complete"] else "rolling",
        born=None if saved["born"] is None else Version(saved["born"]),
        queued=dict(saved["queued"]),
        members=saved["members"],
        scored={member: (TrajectoryId(id_), reward) for member, id_, reward in saved["scored"]},
    )


def buffered(record: SchedulerRecord) -> dict[TrajectoryId, float]:
    """Return the rewards of the trajectories a snapshot counts on finding in the buffer."""
    return {
        TrajectoryId(id_): reward
        for group in record["groups"]
        for _, id_, reward in group["scored"]
    }
