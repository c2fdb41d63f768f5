"""Encoding: events and commands as JSON text and back, exactly.

An object carries its class by name in `type`; the fields follow under their own names. The codec
of a class is derived from its field types once, so a new event or command needs nothing here.
Writers make text directly: this runs once per event of a run.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

from rollart.events import Command, Event

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
