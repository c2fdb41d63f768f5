"""The event log: every event, when it came, and the commands it caused, one JSON line each.

Append-only. A run that is resumed adds a new part to the same file: a header line, then records.
What was written before a crash stays readable: a torn last line is ignored by the reader and cut
off before anything is appended, so every other line is whole.

Encoding: events and commands as JSON text and back, exactly.

An object carries its class by name in `type`; the fields follow under their own names. The codec
of a class is derived from its field types once, so a new event or command needs nothing here.
Writers make text directly: this runs once per event of a run.

Faults of a file that a program wrote and cannot read again, in words.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast, get_args, get_origin, get_type_hints

from rollart.errors import StorageError, UserError
from rollart.events import Command, Event
from rollart.types import Json

Writer = Callable[[Any], str]
Reader = Callable[[Any], Any]

_CLASSES: dict[str, type] = {cls.__name__: cls for cls in get_args(Event) + get_args(Command)}
_write_any: Writer = json.JSONEncoder(separators=(",", ":")).encode


def encode(value: Event | Command) -> str:
    """Return an event or a command as the text of a JSON object."""
    return _class_writer(type(value))(value)


def decode_event(encoded: Mapping[str, Any]) -> Event:
    """Return the event a parsed JSON object was made from."""
    return cast("Event", _decode(encoded))


def decode_command(encoded: Mapping[str, Any]) -> Command:
    """Return the command a parsed JSON object was made from."""
    return cast("Command", _decode(encoded))


def _decode(encoded: Mapping[str, Any]) -> Any:
    name = encoded.get("type")
    cls = _CLASSES.get(str(name))
    if cls is None:
        raise ValueError(f"no event or command is called {name!r}")
    return _class_reader(cls)(encoded)


@cache
def _class_writer(cls: type) -> Writer:
    """Make the writer of a class: a template, and for each field its value as text."""
    hints = _hints(cls)
    fields = [f'"{name}":%s' for name in hints]
    if cls.__name__ in _CLASSES:
        fields.insert(0, f'"type":"{cls.__name__}"')
    template = "{" + ",".join(fields) + "}"
    parts = tuple((name, _writer(hint)) for name, hint in hints.items())

    def write(value: Any) -> str:
        return template % tuple([write(getattr(value, name)) for name, write in parts])

    return write


def _writer(hint: Any) -> Writer:
    base = getattr(hint, "__supertype__", hint)
    if base is int:
        return int.__repr__
    if base is str:
        return cast("Writer", json.encoder.encode_basestring_ascii)
    if dataclasses.is_dataclass(base):
        return _class_writer(cast("type", base))
    if get_origin(base) is tuple:
        return _sequence_writer(_writer(get_args(base)[0]))
    if get_origin(base) is Mapping:
        return lambda value: _write_any(dict(value))
    return _write_any


def _sequence_writer(write: Writer) -> Writer:
    def write_all(values: Sequence[Any]) -> str:
        return "[" + ",".join([write(each) for each in values]) + "]"

    return write_all


@cache
def _class_reader(cls: type) -> Reader:
    readers = {name: _reader(hint) for name, hint in _hints(cls).items()}
    plain = all(read is None for read in readers.values())

    def read(encoded: Any) -> Any:
        values = {name: encoded[name] for name in readers}
        if not plain:
            for name, read_part in readers.items():
                if read_part is not None:
                    values[name] = read_part(values[name])
        return cls(**values)

    return read


def _reader(hint: Any) -> Reader | None:
    """Return what turns a parsed value into the field's type; None where it already is."""
    if dataclasses.is_dataclass(hint):
        return _class_reader(cast("type", hint))
    if get_origin(hint) is not tuple:
        return None
    item = _reader(get_args(hint)[0])
    if item is None:
        return tuple
    return lambda encoded: tuple(item(each) for each in encoded)


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {each.name: hints[each.name] for each in dataclasses.fields(cls)}


def describe_fault(error: BaseException) -> str:
    """Say what is wrong with a text of JSON by the error that reading it raised."""
    match error:
        case json.JSONDecodeError():
            line = f"line {error.lineno}, " if error.lineno > 1 else ""
            return f"no whole JSON: it breaks off or errs at {line}column {error.colno}"
        case UnicodeDecodeError():
            return f"no text: byte {error.start} is not UTF-8"
        case KeyError():
            return f"{error.args[0]!r} is missing"
        case TypeError() | AttributeError():
            return "a value is of another kind than is written there"
        case OSError():
            return error.strerror or str(error)
        case _:
            return str(error)


FORMAT = 2
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
