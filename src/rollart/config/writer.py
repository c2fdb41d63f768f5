"""Writer: a `Config` as TOML, how two configs differ, and what a key means.

What is written loads as the same `Config`: keys and their order come from the fields that the
loader reads. The explanation of a key is the text under its field; type, limits and default come
from the annotations that the loader checks, so they cannot disagree with what it accepts.
"""

import dataclasses
import inspect
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any, cast, get_origin

from rollart.config.fields import (
    TYPE,
    chosen_kind,
    constraints_of,
    describe_type,
    field_docs,
    field_types,
    keys_of,
    make_default,
    option_class,
    option_fields,
)
from rollart.config.loader import unknown_key
from rollart.config.schema import Config
from rollart.errors import UserError
from rollart.plugins import Kind, known_names, name_of

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
    if isinstance(value, _Typed):
        return {TYPE: value.name, **fields(value.value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields(value)
    if not isinstance(value, Mapping):
        return None
    table = cast("Mapping[str, Any]", value)
    return table if any(dataclasses.is_dataclass(each) for each in table.values()) else None


def _changed_fields(value: Any) -> dict[str, Any]:
    """Return the fields that an option class would not have by itself."""
    entries = zip(_fields(value).items(), option_fields(value), strict=True)
    return {key: each for (key, each), entry in entries if _plain(each) != _default(entry)}


def _default(entry: "dataclasses.Field[Any]") -> object:
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return entry.default


def _fields(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, name in keys_of(value).items():
        each, kind = getattr(value, name), chosen_kind(value, key)
        found[key] = each if kind is None else _Typed(name_of(kind, type(each)), each)
    return found


@dataclass(frozen=True, slots=True)
class _Typed:
    """An option class that its section must name."""

    name: str
    value: object


def _plain(value: object) -> object:
    return value.value if isinstance(value, _Typed) else value


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


def explain(key: str, config: Config | None = None) -> str:
    """Describe a key, a section or (empty key) the whole config; with values if a config is given.

    A task's keys are asked for as `tasks.NAME.key`, or `tasks.key` when no config is at hand.
    """
    cls: type = Config
    value: Any = config
    text = inspect.getdoc(Config) or ""
    kind: Kind | None = None
    parts = [part for part in key.split(".") if part]
    for depth, part in enumerate(parts):
        hints = field_types(cls)
        if part not in hints:
            prefix = "".join(f"{each}." for each in parts[:depth])
            raise UserError(f"{prefix}{part}: {unknown_key(cls, prefix, part)}")
        text = field_docs(cls)[part]
        default = _explanation_default(cls, part)
        value = None if value is None else getattr(value, keys_of(cls)[part])
        hint = hints[part]
        within = option_class(hint)
        kind = chosen_kind(cls, part)
        if kind is not None:
            usual = type(make_default(cls, part))
            within = usual if value is None else type(value)
            if parts[depth + 1 :] == [TYPE]:
                now = None if value is None else name_of(kind, within)
                default = toml_value(name_of(kind, usual))
                return _explain_field(key, describe_choice(kind), "text", [], default, now)
            text = f"{text}\n\n{inspect.getdoc(within)}"
        if within is None:
            if parts[depth + 1 :]:
                above = ".".join(parts[: depth + 1])
                raise UserError(f"{key}: no such key; {above} is {describe_type(hint)}")
            limits = [each.fix for each in constraints_of(cls, part)]
            return _explain_field(key, text, describe_type(hint), limits, default, value)
        cls = within
        if get_origin(hint) is Mapping and depth + 1 < len(parts):
            value = _named_task(parts, depth + 1, cls, value)
    return _explain_section(key, text, cls, kind)


def describe_choice(kind: Kind) -> str:
    """Say what a section's `type` may be."""
    known = ", ".join(known_names(kind))
    return f'One of {known}; or your own as "module:Class" or "path/to/file.py:Class".'


def _named_task(parts: list[str], index: int, cls: type, tasks: Any) -> Any:
    """Step over the name in `tasks.NAME.key`, which is written or left out."""
    if parts[index] in field_types(cls) and (tasks is None or parts[index] not in tasks):
        return None
    name = parts.pop(index)
    if tasks is not None and name not in tasks:
        raise UserError(f"no task {name!r}; there is {', '.join(tasks)}")
    return None if tasks is None else tasks[name]


def _explain_field(
    key: str, text: str, kind: str, limits: list[str], default: str, value: object
) -> str:
    lines = [key, indent(text, "  "), f"  type     {kind}"]
    lines += [f"  limits   {each}" for each in limits]
    lines.append(f"  default  {default}")
    if value is not None:
        lines.append(f"  now      {toml_value(value)}")
    return "\n".join(lines)


def _explain_section(key: str, text: str, cls: type, kind: Kind | None) -> str:
    docs = field_docs(cls) if kind is None else {TYPE: describe_choice(kind), **field_docs(cls)}
    width = max(len(name) for name in docs)
    lines = [f"[{key}]" if key else "A config's sections", indent(text, "  "), ""]
    lines += [f"  {name:<{width}}  {_first_paragraph(words)}" for name, words in docs.items()]
    if kind is not None:
        name = known_names(kind)[-1]
        lines += [
            "",
            f'  In a file            [{key}], and below it {TYPE} = "{name}"',
            f"  On the command line  {key}.{TYPE}={name}",
            f'  In Python            rollart.train(…, {key}={{"{TYPE}": "{name}"}})',
        ]
    return "\n".join(lines)


def _first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


def _explanation_default(cls: type, name: str) -> str:
    entry = next(each for each in option_fields(cls) if each.name == keys_of(cls)[name])
    if entry.default is not dataclasses.MISSING:
        return toml_value(entry.default)
    if entry.default_factory is dataclasses.MISSING:
        return "none: required"
    value = make_default(cls, name)
    return "its own defaults" if dataclasses.is_dataclass(value) else toml_value(value)
