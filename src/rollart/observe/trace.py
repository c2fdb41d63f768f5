"""The trace: an event log as a timeline for Perfetto or chrome://tracing.

Slots, engines and the trainer are each a process of the trace, with one track per part. An attempt
is a bar on its slot's track, a weight update or a loan on its engine's, an optimizer step on the
trainer's. A bar is written when it ends, so a log that stops early gives a shorter, valid trace.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollart.errors import StorageError
from rollart.events import (
    Command,
    Drop,
    EngineRecalled,
    Event,
    Launch,
    Lend,
    Publish,
    Published,
    Resume,
    StepFinished,
    Suspend,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.observe.log import Record
from rollart.types import EngineId, TrajectoryId

_SLOTS, _ENGINES, _TRAINER = 1, 2, 3
_NAMES = {_SLOTS: "environment slots", _ENGINES: "engines", _TRAINER: "trainer"}
_STEP_TRACK, _PUBLISH_TRACK = 1, 2


class Trace:
    """Collects the bars of a timeline from log records in time order."""

    def __init__(self) -> None:
        self._bars: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
            for pid, name in _NAMES.items()
        ]
        self._launches: dict[TrajectoryId, tuple[float, Launch]] = {}
        self._open: dict[tuple[int, str], float] = {}
        self._engines: dict[str, int] = {}

    @property
    def events(self) -> list[dict[str, Any]]:
        """Trace events collected so far."""
        return self._bars

    def add(self, record: Record) -> None:
        """Add one record of the log."""
        self._add_event(record.time_s, record.event)
        for command in record.commands:
            self._add_command(record.time_s, command)

    def _add_event(self, now: float, event: Event) -> None:
        match event:
            case TrajectoryFinished(info=info):
                detail = {"reward": info.reward, "turns": info.turns, "born": info.born}
                self._end_attempt(now, info.id, "finished", detail)
            case TrajectoryFailed(id=id_, failure=failure):
                detail = {"kind": failure.kind, "message": failure.message}
                self._end_attempt(now, id_, "failed", detail)
            case TrajectoryCancelled(id=id_):
                self._end_attempt(now, id_, "cancelled", {})
            case EngineRecalled(engine=engine):
                self._end_engine(now, engine, f"lend {engine}")
            case StepFinished(version=version, metrics=metrics):
                name = f"step {version}"
                self._end(now, (_TRAINER, "step"), _STEP_TRACK, name, dict(metrics))
            case Published(version=version):
                name = f"publish {version}"
                self._end(now, (_TRAINER, "publish"), _PUBLISH_TRACK, name, {})
            case _:
                pass

    def _add_command(self, now: float, command: Command) -> None:
        match command:
            case Launch():
                self._launches[command.id] = (now, command)
            case Train():
                self._open[_TRAINER, "step"] = now
            case Publish():
                self._open[_TRAINER, "publish"] = now
            case Suspend(engine=engine) | Lend(engine=engine):
                self._open[_ENGINES, engine] = now
            case Resume(engine=engine):
                self._end_engine(now, engine, f"update {engine}")
            case Drop(ids=ids, reason=reason):
                self._bars.append(
                    {
                        "name": f"drop {len(ids)}: {reason}",
                        "ph": "i",
                        "s": "p",
                        "pid": _TRAINER,
                        "tid": _STEP_TRACK,
                        "ts": _micros(now),
                    }
                )
            case _:
                pass

    def _end_attempt(self, now: float, id_: TrajectoryId, how: str, detail: dict[str, Any]) -> None:
        if id_ not in self._launches:
            return
        start, launch = self._launches.pop(id_)
        detail |= {"group": launch.group, "attempt": launch.attempt, "task": launch.task}
        self._bar(start, now, _SLOTS, launch.slot + 1, f"{id_} {how}", detail)

    def _end_engine(self, now: float, engine: EngineId, name: str) -> None:
        track = self._engines.setdefault(engine, len(self._engines) + 1)
        self._end(now, (_ENGINES, engine), track, name, {})

    def _end(
        self, now: float, key: tuple[int, str], track: int, name: str, detail: dict[str, Any]
    ) -> None:
        start = self._open.pop(key, None)
        if start is not None:
            self._bar(start, now, key[0], track, name, detail)

    def _bar(
        self, start: float, end: float, pid: int, track: int, name: str, detail: dict[str, Any]
    ) -> None:
        self._bars.append(
            {
                "name": name,
                "ph": "X",
                "pid": pid,
                "tid": track,
                "ts": _micros(start),
                "dur": _micros(end - start),
                "args": detail,
            }
        )


def write_trace(path: Path, records: Iterable[Record]) -> None:
    """Write the timeline of a log's records."""
    trace = Trace()
    for record in records:
        trace.add(record)
    save_trace(path, trace)


def save_trace(path: Path, trace: Trace) -> None:
    """Write a trace as JSON."""
    try:
        path.write_text(json.dumps({"traceEvents": trace.events}), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: the trace cannot be written: {error}") from error


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
