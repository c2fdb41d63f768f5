"""The event log: every event, when it came, and the commands it caused, one JSON line each.

Append-only. A run that is resumed adds a new part to the same file: a header line, then records.
What was written before a crash stays readable: a torn last line is ignored by the reader and cut
off before anything is appended, so every other line is whole.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rollart.errors import StorageError, UserError
from rollart.events import Command, Event
from rollart.observe.encoding import decode_command, decode_event, encode
from rollart.observe.faults import describe_fault
from rollart.types import Json

FORMAT = 1
"""Version of the file's format; a reader refuses others."""
FLUSH_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHeader:
    """What a part of the log was made with: enough to build the same scheduler again."""

    seed: int
    rules: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The scheduler's rules, by config section."""
    snapshot: Json = None
    """The scheduler's state at the start of this part; None is a fresh one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event and what followed from it."""

    time_s: float
    event: Event
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """What one process wrote: from the run's start, or from a resume."""

    header: LogHeader
    records: tuple[Record, ...]


class EventLog:
    """Writes a run's log; flushed about once a second and when closed."""

    def __init__(self, path: Path, header: LogHeader) -> None:
        self._path = path
        self._flushed_s = float("-inf")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut_torn_line(path)
            self._file = path.open("a", encoding="utf-8", buffering=1 << 18)
        except OSError as error:
            raise StorageError(f"{path}: the event log cannot be opened: {error}") from error
        first = {
            "format": FORMAT,
            "seed": header.seed,
            "rules": header.rules,
            "snapshot": header.snapshot,
        }
        self._write(json.dumps(first) + "\n")
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Write one record."""
        did = ",".join([encode(each) for each in commands])
        self._write(f'{{"t":{now!r},"event":{encode(event)},"do":[{did}]}}\n')
        if now - self._flushed_s >= FLUSH_EVERY_S:
            self._flushed_s = now
            self.flush()

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        try:
            self._file.flush()
        except OSError as error:
            raise StorageError(f"{self._path}: the event log cannot be written: {error}") from error

    def close(self) -> None:
        """Write what is buffered and close the file."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                with contextlib.suppress(OSError):
                    self._file.close()

    def _write(self, line: str) -> None:
        try:
            self._file.write(line)
        except OSError as error:
            raise StorageError(f"{self._path}: the event log cannot be written: {error}") from error


def read_log(path: Path) -> tuple[LogPart, ...]:
    """Read a log, part by part."""
    parts: list[LogPart] = []
    header: LogHeader | None = None
    records: list[Record] = []
    for number, line in _whole_lines(path):
        try:
            value = json.loads(line)
            if "format" not in value:
                records.append(decode_record(value))
                continue
            if header is not None:
                parts.append(LogPart(header=header, records=tuple(records)))
            header, records = _header(value, path), []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault = describe_fault(error)
            raise UserError(f"{path}:{number}: not a line of an event log: {fault}") from error
    if header is None:
        raise UserError(f"{path}: holds no event log: its first line has no header")
    return (*parts, LogPart(header=header, records=tuple(records)))


def decode_record(value: Mapping[str, Any]) -> Record:
    """Return what a line of a log says that is no header."""
    return Record(
        time_s=value["t"],
        event=decode_event(value["event"]),
        commands=tuple(decode_command(each) for each in value["do"]),
    )


def _header(value: Mapping[str, Any], path: Path) -> LogHeader:
    if value["format"] != FORMAT:
        raise UserError(
            f"{path}: log format {value['format']}; this version of rollart reads format {FORMAT}"
        )
    return LogHeader(seed=value["seed"], rules=value["rules"], snapshot=value["snapshot"])


def _whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.endswith("\n"):
                    yield number, line
    except FileNotFoundError:
        raise UserError(f"{path}: no such event log; is this a run's directory?") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def _cut_torn_line(path: Path) -> None:
    """Remove a last line that was not written whole."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, 2)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            end = start
        file.truncate(0)
