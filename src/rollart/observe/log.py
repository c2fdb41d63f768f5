"""The event log: every event, when it came, and the commands it caused, one JSON line each.

    {"format": 2, "seed": 7, "rules": {...}, "snapshot": null}
    {"t":0.5,"event":{"type":"TrajectoryBorn","id":1,"version":0},"do":[]}

Append-only. A run that is resumed adds a new part to the same file: a header line, then records.
What was written before a crash stays readable: a torn last line is ignored by the reader and cut
off before anything is appended, so every other line is whole. So is everything from the first NUL
byte on: a power cut may leave a hole where the disk had not written yet. What a checkpoint depends
on is synced before it (`sync`). Events and commands come back equal, so a log that is replayed
gives the same commands.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from operator import methodcaller
from pathlib import Path
from types import TracebackType
from typing import Self

from rollart.atomic_files import AppendFile, sync
from rollart.errors import StorageError, UserError
from rollart.events import Command, Event
from rollart.serialization.codec import Codec, CodecError
from rollart.types import Json

FORMAT = 2
"""Version of the file's format; a reader refuses others."""
FLUSH_EVERY_S = 1.0
_CHUNK_BYTES = 1 << 18
"""How much of a log is decoded at a time."""
_begins_record = methodcaller("startswith", b'{"t":')
"""Says of a line that it is a record, without parsing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHeader:
    """What a part of the log was made with: enough to build the same scheduler again.

    Example:
        LogHeader(seed=7, rules={"steps": 100, "mode": "rollart"})

    """

    format: int = FORMAT
    seed: int
    rules: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The scheduler's rules, by config section."""
    snapshot: Json = None
    """The scheduler's state at the start of this part; None is a fresh one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event and what followed from it.

    Example:
        Record(time_s=0.5, event=TrajectoryBorn(id=1, version=0), commands=())

    """

    time_s: float = field(metadata={"json": "t"})
    """Seconds since the run started."""
    event: Event
    commands: tuple[Command, ...] = field(metadata={"json": "do"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """What one process wrote: from the run's start, or from a resume.

    Example:
        LogPart(header=LogHeader(seed=7), records=())

    """

    header: LogHeader
    records: tuple[Record, ...]


_TIME = Codec[float](float, name="time")
_EVENT = Codec[Event](Event, name="event")
_COMMAND = Codec[Command](Command, name="command")
_RECORD = Codec[Record](Record, name="record")
_RECORDS = Codec[tuple[Record, ...]](tuple[Record, ...], name="records")
_HEADER = Codec[LogHeader](LogHeader, name="header")
_write_time = _TIME.writers
_write_event = _EVENT.writers
_write_command = _COMMAND.writers


def encode_record(now: float, event: Event, commands: Sequence[Command]) -> bytes:
    """Return the line of an event and its commands.

    It is put together from its parts, without a `Record`: this runs once per event of a run.
    """
    try:
        done = b",".join([_write_command[type(each)](each) for each in commands])
        parts = _write_time[type(now)](now), _write_event[type(event)](event), done
    except (KeyError, ValueError, TypeError):  # the first of its class, or not a plain value
        done = b",".join([_COMMAND.encode(each) for each in commands])
        parts = _TIME.encode(now), _EVENT.encode(event), done
    return b'{"t":%b,"event":%b,"do":[%b]}\n' % parts


def decode_record(line: bytes | str) -> Record:
    """Return what a line of a log says that is no header; CodecError if it is none."""
    return _RECORD.decode(line)


class EventLog:
    """Writes a run's log; flushed about once a second and when closed."""

    def __init__(
        self, path: Path, header: LogHeader, *, warn: Callable[[str], object] = lambda _: None
    ) -> None:
        """Open a log for a new part; `warn` says that the disk is full, and that it has room."""
        self._flushed_s = float("-inf")
        try:
            _cut_torn_end(path)
        except OSError as error:
            raise StorageError(f"{path}: the event log cannot be opened: {error}") from error
        self._file = AppendFile(path, what="the event log", warn=warn)
        self._file.append(_HEADER.encode(header) + b"\n")
        self._file.flush()

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
        self._file.append(encode_record(now, event, commands))
        if now - self._flushed_s >= FLUSH_EVERY_S:
            self._flushed_s = now
            self._file.flush()

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._file.flush()

    def sync(self) -> None:
        """Have what was flushed on the disk; may be called from another thread."""
        self._file.sync()

    def close(self) -> None:
        """Write what is buffered and close the file."""
        self._file.close()


def read_log(path: Path) -> tuple[LogPart, ...]:
    """Read a log, part by part."""
    parts: list[LogPart] = []
    header: LogHeader | None = None
    records: list[Record] = []
    for number, lines in _chunks(path):
        if not is_header(lines[0]):
            records += _decode_lines(lines, path, number)
            continue
        if header is not None:
            parts.append(LogPart(header=header, records=tuple(records)))
        header, records = _decode_header(lines[0], path, number), []
    if header is None:
        raise UserError(f"{path}: holds no event log: its first line has no header")
    return (*parts, LogPart(header=header, records=tuple(records)))


def _decode_lines(lines: list[bytes], path: Path, first: int) -> Sequence[Record]:
    """Return the records of some lines, the first of which has this number in the file."""
    # As one array they are read by one call; line by line only to find the one that is wrong.
    with contextlib.suppress(CodecError):
        records = _RECORDS.decode(b"[" + b",".join(lines) + b"]")
        if len(records) == len(lines):
            return records
    return [_decode_line(line, path, number) for number, line in enumerate(lines, start=first)]


def _decode_line(line: bytes, path: Path, number: int) -> Record:
    try:
        return decode_record(line)
    except CodecError as error:
        raise UserError(f"{path}:{number}: not a line of an event log: {error}") from error


def is_header(line: bytes) -> bool:
    """Say whether a line begins a part."""
    if _begins_record(line):
        return False
    try:
        return "format" in json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return False


def _decode_header(line: bytes, path: Path, number: int) -> LogHeader:
    written = json.loads(line)["format"]
    if written != FORMAT:
        raise UserError(
            f"{path}: log format {written}; this version of rollart reads format {FORMAT}"
        )
    try:
        return _HEADER.decode(line)
    except CodecError as error:
        raise UserError(f"{path}:{number}: not a line of an event log: {error}") from error


def _chunks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the whole lines of a log with the number of the first: records, or another line."""
    number = 1
    try:
        with path.open("rb") as file:
            while lines := file.readlines(_CHUNK_BYTES):
                whole = [*takewhile(_is_whole, lines)]
                for is_record, group in groupby(whole, _begins_record):
                    for chunk in [[*group]] if is_record else ([line] for line in group):
                        yield number, chunk
                        number += len(chunk)
                if len(whole) < len(lines):
                    return
    except FileNotFoundError:
        raise UserError(f"{path}: no such event log; is this a run's directory?") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and b"\0" not in line


def _cut_torn_end(path: Path) -> None:
    """Remove what was not written whole: all from a NUL byte on, and a line without an end."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = start = 0
        while chunk := file.read(1 << 20):
            hole = chunk.find(b"\0")
            newline = chunk.rfind(b"\n", 0, len(chunk) if hole < 0 else hole)
            end = end if newline < 0 else start + newline + 1
            start += len(chunk)
            if hole >= 0:
                break
        if end < file.seek(0, 2):
            file.truncate(end)
            file.flush()
            sync(path)
