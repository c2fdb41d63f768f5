"""Explanations: what a key means, from the text written under its field.

Type, limits and default come from the same annotations that the loader checks, so they cannot
disagree with what it accepts.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from textwrap import indent
from typing import Any, get_origin

from rollart.config.fields import (
    constraints_of,
    describe_type,
    field_docs,
    field_types,
    keys_of,
    option_class,
    option_fields,
)
from rollart.config.loader import unknown_key
from rollart.config.schema import Config
from rollart.config.writer import toml_value
from rollart.errors import UserError


def explain(key: str, config: Config | None = None) -> str:
    """Describe a key, a section or (empty key) the whole config; with values if a config is given.

    A task's keys are asked for as `tasks.NAME.key`, or `tasks.key` when no config is at hand.
    """
    cls: type = Config
    value: Any = config
    text = inspect.getdoc(Config) or ""
    parts = [part for part in key.split(".") if part]
    for depth, part in enumerate(parts):
        hints = field_types(cls)
        if part not in hints:
            prefix = "".join(f"{each}." for each in parts[:depth])
            raise UserError(f"{prefix}{part}: {unknown_key(cls, prefix, part)}")
        text = field_docs(cls)[part]
        default = _default(cls, part)
        value = None if value is None else getattr(value, keys_of(cls)[part])
        hint = hints[part]
        within = option_class(hint)
        if within is None:
            if parts[depth + 1 :]:
                above = ".".join(parts[: depth + 1])
                raise UserError(f"{key}: no such key; {above} is {describe_type(hint)}")
            limits = [each.fix for each in constraints_of(cls, part)]
            return _explain_field(key, text, describe_type(hint), limits, default, value)
        cls = within
        if get_origin(hint) is Mapping and depth + 1 < len(parts):
            value = _named_task(parts, depth + 1, cls, value)
    return _explain_section(key, text, cls)


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


def _explain_section(key: str, text: str, cls: type) -> str:
    docs = field_docs(cls)
    width = max(len(name) for name in docs)
    lines = [f"[{key}]" if key else "A config's sections", indent(text, "  "), ""]
    lines += [f"  {name:<{width}}  {_first_paragraph(words)}" for name, words in docs.items()]
    return "\n".join(lines)


def _first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


def _default(cls: type, name: str) -> str:
    entry = next(each for each in option_fields(cls) if each.name == keys_of(cls)[name])
    if entry.default is not dataclasses.MISSING:
        return toml_value(entry.default)
    if entry.default_factory is dataclasses.MISSING:
        return "none: required"
    value = entry.default_factory()
    return "its own defaults" if dataclasses.is_dataclass(value) else toml_value(value)
