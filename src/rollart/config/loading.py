"""Loading: from a merged table to a `Config`, or to an error that names field, value and fix.

Values are checked strictly against the fields' types: "8" is not an integer, 1 is a number, a
TOML list is a tuple. The text "none" stands for no value where a field allows that.
"""

import dataclasses
import difflib
import json
import math
import shlex
import sys
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from rollart.config.keys import keys_of, meant_by
from rollart.config.layers import Layered, Table, read_layers
from rollart.config.schema import Config
from rollart.errors import ConfigError

T = TypeVar("T")


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a config file, apply overrides, validate everything."""
    path = Path(path)
    layered = read_layers(path, overrides)
    run = layered.table.setdefault("run", {})
    if isinstance(run, dict):
        cast("Table", run).setdefault("import_paths", [str(path.resolve().parent)])
    return Builder(layered).build(Config, layered.table, "")


def parse_config(text: str) -> Config:
    """Return the config that `dump_toml` wrote as this text."""
    layered = Layered(table=tomllib.loads(text))
    return Builder(layered).build(Config, layered.table, "")


def add_import_paths(config: Config) -> None:
    """Let `module:Class` names in the config find the user's own modules."""
    for directory in reversed(config.run.import_paths):
        if directory not in sys.path:
            sys.path.insert(0, directory)


class Builder:
    """Makes option classes from tables and says where a wrong value was written."""

    def __init__(self, layered: Layered) -> None:
        self._layered = layered

    def build(self, cls: type[T], table: Table, path: str) -> T:
        """Make one option class, its nested ones first."""
        prefix = f"{path}." if path else ""
        hints, names = field_types(cls), keys_of(cls)
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key not in hints:
                raise self._error(prefix + key, value, unknown_key(cls, prefix, key))
            values[names[key]] = self._value(hints[key], value, prefix + key)
        for missing in (key for key in _required(cls) if names[key] not in values):
            raise ConfigError(prefix + missing, None, self._missing(cls, path, missing))
        try:
            return cls(**values)
        except ConfigError as error:
            raise self._located(error, path) from None

    def _value(self, hint: Any, value: object, path: str) -> Any:
        options = option_class(hint)
        if options is not None and options is hint:
            return self.build(options, self._table(value, path), path)
        if options is not None:
            return {
                name: self.build(options, self._table(each, f"{path}.{name}"), f"{path}.{name}")
                for name, each in self._table(value, path).items()
            }
        if value == "none" and type(None) in get_args(hint):
            return None
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(hint)
            checked = adapter.validate_json(json.dumps(value), strict=True)
        except (ValidationError, TypeError):
            raise self._error(path, value, self._wrong_type(hint, value, path)) from None
        if isinstance(checked, float) and not math.isfinite(checked):
            raise self._error(path, value, "must be a finite number")
        return checked

    def _wrong_type(self, hint: Any, value: object, path: str) -> str:
        wanted = describe_type(hint)
        fix = f"must be {wanted}"
        typed = self._layered.typed.get(path)
        if get_origin(hint) is Literal and isinstance(value, str):
            choices = [str(each) for each in get_args(hint)]
            near = difflib.get_close_matches(value, choices, n=1)
            return f"{fix}; did you mean {json.dumps(near[0])}?" if near else fix
        if isinstance(value, str) and hint in (int, float, bool) and typed is None:
            return f"{fix}, without quotes"
        if typed is not None and "text" in wanted.split(" or "):
            return f"{fix}; as text: {shlex.quote(f'{path}={json.dumps(typed)}')}"
        return fix

    def _table(self, value: object, path: str) -> Table:
        if not isinstance(value, dict):
            raise self._error(path, value, f"is a section: write [{path}] and keys below it")
        return cast("Table", value)

    def _missing(self, cls: type, path: str, name: str) -> str:
        if cls is Config:
            return 'is required: add a section such as [tasks.lake] with env = "frozen_lake"'
        where = self._layered.origin(path)
        return f"is required in [{path}]" + (f" ({where})" if where else "")

    def _error(self, field: str, value: object, fix: str) -> ConfigError:
        where = self._layered.origin(field)
        return ConfigError(field, value, f"{fix} ({where})" if where else fix)

    def _located(self, error: ConfigError, path: str) -> ConfigError:
        """Give an option class's own error the path the class has in this config."""
        name = error.field.rpartition(".")[2]
        return self._error(f"{path}.{name}" if path else error.field, error.value, error.fix)


def field_types(cls: type) -> dict[str, Any]:
    """Return the resolved types of an option class's fields, by their keys in files."""
    hints = get_type_hints(cls)
    return {key: hints[name] for key, name in keys_of(cls).items()}


def option_class(hint: Any) -> type[Any] | None:
    """Return the option class a field holds, directly or by name."""
    if get_origin(hint) is Mapping:
        hint = get_args(hint)[-1]
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def describe_type(hint: Any) -> str:
    """Say in words what a field accepts."""
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin is Literal:
        return " or ".join(json.dumps(each) for each in arguments)
    if origin in (Union, types.UnionType):
        words = [describe_type(each) for each in arguments if each is not type(None)]
        return " or ".join([*words, '"none"'] if type(None) in arguments else words)
    if origin is tuple:
        count = "" if arguments[-1] is ... else f" of {len(arguments)}"
        return f"a list{count}, each {describe_type(arguments[0])}"
    if origin in (Mapping, dict):
        return "a table"
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if dataclasses.is_dataclass(hint):
        return "a section"
    return simple.get(hint, str(hint))


def _required(cls: type) -> list[str]:
    missing = dataclasses.MISSING
    return [
        key
        for key, each in zip(keys_of(cls), dataclasses.fields(cls), strict=True)
        if each.default is missing and each.default_factory is missing
    ]


def _places(key: str) -> list[str]:
    """Return where in a config's sections there is such a key."""
    return [
        f"{section}.{key}"
        for section, hint in field_types(Config).items()
        if option_class(hint) is hint and key in field_types(hint)
    ]


def unknown_key(cls: type, prefix: str, key: str) -> str:
    """Say that a class has no such key, and which was meant or which there are."""
    hints = field_types(cls)
    if prefix and key in field_types(Config):
        return f"unknown key; did you mean the section [{key}]?"
    if not prefix and (places := _places(key)):
        return f"unknown key; did you mean {' or '.join(places)}?"
    if meant := meant_by(cls, key):
        return f"unknown key; did you mean {prefix}{meant}?"
    near = difflib.get_close_matches(key, hints, n=1, cutoff=0.5)
    if near:
        return f"unknown key; did you mean {prefix}{near[0]}?"
    return f"unknown key; {prefix.rstrip('.') or 'a config'} has {', '.join(sorted(hints))}"
