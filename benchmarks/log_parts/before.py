"""The hand-written event log that the product's is compared with.

A copy of `rollart.observe.log` and `rollart.observe.log` of version e3154d7. It uses the
product's events and commands and nothing else of the product, so it stays when that changes.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

from rollart.events import Command, Event

FORMAT = 1
FLUSH_EVERY_S = 1.0

Writer = Callable[[Any], str]
Reader = Callable[[Any], Any]

_CLASSES: dict[str, type] = {cls.__name__: cls for cls in get_args(Event) + get_args(Command)}
_write_any: Writer = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event and what followed from it."""

    time_s: float
    event: Event
    commands: tuple[Command, ...]


class EventLog:
    """Writes a log; flushed about once a second and when closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._flushed_s = float("-inf")
        self._file = path.open("a", encoding="utf-8", buffering=1 << 18)
        first = {"format": FORMAT, "seed": 0, "rules": {}, "snapshot": None}
        self._write(json.dumps(first) + "\n")
        self.flush()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *_: object) -> None:
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
            raise RuntimeError(f"{self._path} cannot be written: {error}") from error

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
            raise RuntimeError(f"{self._path} cannot be written: {error}") from error


def read_log(path: Path) -> tuple[Record, ...]:
    """Read the records of a log of one part."""
    records: list[Record] = []
    for number, line in _whole_lines(path):
        try:
            value = json.loads(line)
            if "format" not in value:
                records.append(decode_record(value))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RuntimeError(f"{path}:{number}: not a line of an event log") from error
    return tuple(records)


def decode_record(value: Mapping[str, Any]) -> Record:
    """Return what a line of a log says that is no header."""
    return Record(
        time_s=value["t"],
        event=decode_event(value["event"]),
        commands=tuple(decode_command(each) for each in value["do"]),
    )


def _whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.endswith("\n"):
                yield number, line


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
