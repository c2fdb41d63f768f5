"""Writer: a `Config` as TOML, complete or without defaults, and what two configs differ in.

What is written loads as the same `Config`: keys and their order come from the fields that the
loader reads.
"""

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from rollart.config.fields import keys_of, option_fields
from rollart.config.schema import Config

Fields = Callable[[Any], dict[str, Any]]
"""What is written of an option class, by key."""


def dump_toml(config: Config, *, changed: bool = False) -> str:
    """Return the config as TOML text: every field, or only those that are not at their default."""
    lines: list[str] = []
    fields = _changed_fields if changed else _fields
    _write_table(lines, fields(config), "", fields=fields)
    return "\n".join(lines).lstrip("\n") + "\n"


def toml_value(value: object) -> str:
    """Return one value as TOML; no value at all is the text "none"."""
    match value:
        case None:
            return '"none"'
        case bool() | int() | float():
            return _number(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            table = cast("Mapping[str, object]", value)
            inner = ", ".join(f"{_key(key)} = {toml_value(each)}" for key, each in table.items())
            return f"{{ {inner} }}" if inner else "{}"
        case list() | tuple():
            items = cast("Sequence[object]", value)
            return "[" + ", ".join(toml_value(each) for each in items) + "]"
        case _:
            raise TypeError(f"no TOML for {value!r}")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value).lower()
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def _write_table(lines: list[str], table: Mapping[str, Any], path: str, *, fields: Fields) -> None:
    inner = {key: _section(value, fields) for key, value in table.items()}
    sections = {key: each for key, each in inner.items() if each is not None}
    plain = {key: value for key, value in table.items() if key not in sections}
    if path and (plain or not sections):
        lines += ["", f"[{path}]"]
    lines += [f"{_key(key)} = {toml_value(value)}" for key, value in plain.items()]
    for key, each in sections.items():
        _write_table(lines, each, f"{path}.{_key(key)}" if path else _key(key), fields=fields)


def _section(value: object, fields: Fields) -> Mapping[str, Any] | None:
    """Return a value as a table of its own: an option class, or option classes by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields(value)
    if not isinstance(value, Mapping):
        return None
    table = cast("Mapping[str, Any]", value)
    return table if any(dataclasses.is_dataclass(each) for each in table.values()) else None


def _changed_fields(value: Any) -> dict[str, Any]:
    """Return the fields that an option class would not have by itself."""
    entries = zip(_fields(value).items(), option_fields(value), strict=True)
    return {key: each for (key, each), entry in entries if each != _default(entry)}


def _default(entry: "dataclasses.Field[Any]") -> object:
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return entry.default


def _fields(value: Any) -> dict[str, Any]:
    return {key: getattr(value, name) for key, name in keys_of(value).items()}


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key, ensure_ascii=False)


def changed_values(before: Config, after: Config) -> list[str]:
    """Return each key whose value differs, as `key = before -> after`."""
    old, new = (dict(_flat(tomllib.loads(dump_toml(each)), "")) for each in (before, after))
    return [
        f"{key} = {_shown(old, key)} -> {_shown(new, key)}"
        for key in dict.fromkeys([*old, *new])
        if key not in old or key not in new or old[key] != new[key]
    ]


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _shown(values: Mapping[str, object], key: str) -> str:
    return toml_value(values[key]) if key in values else "not there"
