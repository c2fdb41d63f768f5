"""Writing: a `Config` as TOML, complete, so that loading it gives the same `Config`."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rollart.config.keys import keys_of
from rollart.config.schema import Config


def dump_toml(config: Config) -> str:
    """Return every field of the config as TOML text."""
    lines: list[str] = []
    _write_table(lines, _fields(config), "")
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


def _write_table(lines: list[str], table: Mapping[str, Any], path: str) -> None:
    sections = {key: inner for key, value in table.items() if (inner := _section(value))}
    plain = {key: value for key, value in table.items() if key not in sections}
    if path and (plain or not sections):
        lines += ["", f"[{path}]"]
    lines += [f"{_key(key)} = {toml_value(value)}" for key, value in plain.items()]
    for key, inner in sections.items():
        _write_table(lines, inner, f"{path}.{_key(key)}" if path else _key(key))


def _section(value: object) -> Mapping[str, Any] | None:
    """Return a value as a table of its own: an option class, or option classes by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if not isinstance(value, Mapping):
        return None
    table = cast("Mapping[str, Any]", value)
    return table if any(dataclasses.is_dataclass(each) for each in table.values()) else None


def _fields(value: Any) -> dict[str, Any]:
    return {key: getattr(value, name) for key, name in keys_of(value).items()}


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key, ensure_ascii=False)
