"""Replay: a run's log fed to a new scheduler, which must give the same commands.

It proves, from the log alone, that the scheduler decides by its events only; that every attempt
ended exactly once (or, where the run was cut off, is named as open); that none was trained twice;
and that no batch was older than the mode promises. A resumed run's log has several parts, each
starting from the snapshot it was resumed with.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rollart.control.scheduler import Scheduler, check
from rollart.control.snapshot import (
    buffered,
    decode_domains,
    decode_rules,
    decode_tasks,
    restore,
)
from rollart.errors import UserError
from rollart.events import (
    Command,
    Drop,
    EngineJoined,
    Launch,
    RunStarted,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.observe.log import LogPart, Record, read_log
from rollart.observe.run_directory import LOG
from rollart.observe.selection import Selection, as_json
from rollart.types import EngineId, Json, TrajectoryId, Version

_CHECK_EVERY = 97


class ReplayError(UserError):
    """The log contradicts the scheduler or itself."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"the log proves nothing: {message}\n"
            "It was changed after the run, or written by another version of rollart; "
            "if neither, this is a bug worth reporting."
        )


def replay(directory: Path) -> dict[str, Json]:
    """Replay a run's log; return what was counted, or raise where it contradicts."""
    ledger, selection = _Endings(), Selection()
    events = staleness = lost = 0
    promised: list[int] = []
    for part in read_log(directory / LOG):
        scheduler = _scheduler(part)
        ledger.resume(part)
        selection.name_tasks(_task_names(part))
        for number, record in enumerate(part.records):
            events += 1
            is_checked = number % _CHECK_EVERY == 0
            commands = _handle(scheduler, record, number=events, is_checked=is_checked)
            if commands != record.commands:
                raise ReplayError(_difference(events, record, commands))
            ledger.note(record)
            selection.add(record.event, record.commands)
            staleness = max([staleness, *_ages(record, scheduler, promised, ledger.born)])
        lost += len(ledger.open - _known(scheduler))
    return {
        "events": events,
        "same_commands": True,
        "trajectories": ledger.launched,
        **ledger.counts(),
        "lost": lost,
        "trained_twice": ledger.trained_twice,
        "max_staleness": staleness,
        "promised_staleness": max(promised) if promised else None,
        **as_json(selection),
    }


def _task_names(part: LogPart) -> Callable[[int], str] | None:
    """Return the names of the tasks at the indices of the stream, if the log has them."""
    tasks = decode_tasks(part.header.rules)
    return None if tasks is None else tasks.name


def turns_served(parts: Iterable[LogPart]) -> dict[str, dict[str, int]]:
    """Return how many turns of each task domain were completed by each pool."""
    served: dict[str, Counter[str]] = {}
    tasks: dict[TrajectoryId, int] = {}
    for part in parts:
        domain_of, pools = decode_domains(part.header.rules), dict[EngineId, str]()
        for record in part.records:
            match record.event:
                case RunStarted(engines=engines):
                    pools |= {engine.id: engine.pool for engine in engines}
                case EngineJoined(engine=engine):
                    pools[engine.id] = engine.pool
                case TrajectoryFinished(info=info):
                    counts = served.setdefault(domain_of(tasks[info.id]), Counter())
                    for engine, turns in info.served.items():
                        counts[pools[engine]] += turns
                case _:
                    pass
            tasks |= {each.id: each.task for each in record.commands if isinstance(each, Launch)}
    return {domain: dict(counts) for domain, counts in served.items()}


def _handle(
    scheduler: Scheduler, record: Record, *, number: int, is_checked: bool
) -> tuple[Command, ...]:
    """Feed one event; whatever the scheduler makes of a log's values is the log's fault."""
    try:
        commands = tuple(scheduler.handle(record.event, record.time_s))
        if is_checked:
            check(scheduler)
    except Exception as error:
        raise ReplayError(
            f"event {number} ({record.event}) cannot have happened: {error!r}"
        ) from error
    return commands


def _scheduler(part: LogPart) -> Scheduler:
    snapshot: Any = part.header.snapshot
    try:
        encoded = part.header.rules
        rules = decode_rules(encoded, seed=part.header.seed)
        domain_of = decode_domains(encoded)
        if snapshot is None:
            return Scheduler(rules, domain_of=domain_of)
        return restore(rules, snapshot, domain_of=domain_of)
    except Exception as error:
        raise ReplayError(f"no scheduler can be made from a header of it: {error!r}") from error


def _known(scheduler: Scheduler) -> set[TrajectoryId]:
    """Return the attempts a scheduler still answers for: in flight, or kept for a resume."""
    kept = {id_ for group in scheduler.groups.by_id.values() for id_ in group.trajectories}
    return kept | set(scheduler.attempts.by_id)


def _ages(
    record: Record, scheduler: Scheduler, promised: list[int], born: Mapping[TrajectoryId, Version]
) -> Iterable[int]:
    """Yield the staleness of each batch, having checked it against the mode's promise.

    It is also checked against the births in the log, not only against the scheduler's state.
    """
    for command in record.commands:
        if isinstance(command, Train):
            births = [born[id_] for group in command.groups for id_ in group if id_ in born]
            if births and command.version - min(births) > command.staleness:
                raise ReplayError(
                    f"the batch of version {command.version} is said to have staleness "
                    f"{command.staleness}, but a trajectory of it was born of {min(births)}"
                )
            if scheduler.rules.mode.bound == "always":
                bound = scheduler.bound
                limit = bound.oldest + (1 if bound.counting == "serving" else 0)
                promised.append(limit)
                if command.staleness > limit:
                    raise ReplayError(
                        f"the batch of version {command.version} has staleness "
                        f"{command.staleness}, promised was {limit}"
                    )
            yield command.staleness


def _difference(number: int, record: Record, commands: tuple[object, ...]) -> str:
    return (
        f"event {number} ({record.event}) gave other commands on replay:\n"
        f"  logged   {record.commands}\n  replayed {commands}"
    )


class _Endings:
    """Counts how every launched attempt ended."""

    def __init__(self) -> None:
        self.launched = 0
        self.trained_twice = 0
        self.open: set[TrajectoryId] = set()
        self.born: dict[TrajectoryId, Version] = {}
        """The weights each finished attempt says it began with."""
        self._how: Counter[str] = Counter()
        self._trained: set[TrajectoryId] = set()

    def resume(self, part: LogPart) -> None:
        """Forget what the earlier run did after the snapshot that is resumed."""
        snapshot: Any = part.header.snapshot
        if snapshot is None:
            return
        kept = set(buffered(snapshot))
        self._how["superseded"] += len(self.open - kept)
        self.open = kept
        before = {id_ for id_ in self._trained if id_ < snapshot["next_trajectory"]}
        self._trained = before - kept

    def note(self, record: Record) -> None:
        """Count what an event and its commands ended."""
        if isinstance(record.event, TrajectoryFailed):
            self._end(record.event.id, f"failed:{record.event.failure.kind}")
        elif isinstance(record.event, TrajectoryCancelled):
            self._end(record.event.id, "cancelled")
        elif isinstance(record.event, TrajectoryFinished):
            self.born[record.event.info.id] = record.event.info.born
        for command in record.commands:
            match command:
                case Launch():
                    self.launched += 1
                    self.open.add(command.id)
                case Drop():
                    for id_ in command.ids:
                        self._end(id_, f"dropped:{command.reason}")
                case Train():
                    for id_ in (id_ for group in command.groups for id_ in group):
                        self._train(id_)
                case _:
                    pass

    def counts(self) -> dict[str, Json]:
        """Return how many attempts ended in each way; `open` are those cut off or kept."""
        ended: dict[str, Json] = {how: count for how, count in sorted(self._how.items()) if count}
        return {"ended": ended, "open": len(self.open)}

    def _train(self, id_: TrajectoryId) -> None:
        if id_ in self._trained:
            self.trained_twice += 1
        else:
            self._trained.add(id_)
            self._end(id_, "trained")

    def _end(self, id_: TrajectoryId, how: str) -> None:
        if id_ not in self.open:
            raise ReplayError(f"trajectory {id_} ended a second time: {how}")
        self.open.remove(id_)
        self._how[how] += 1
