"""Loading: TOML files and `key=value` overrides in, one checked `Config` out.

Files that extend each other and overrides are layers of one table (`Layered`): later layers win,
key by key, and each key remembers where its value was written. `OptionBuilder` turns the table
into option classes. It checks values strictly against the fields' types ("8" is not an integer,
1 is a number, a TOML list is a tuple, the text "none" stands for no value where a field allows
that), so an error always names field, value and fix, and the file and line if there is one.
"""

import dataclasses
import difflib
import json
import math
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from rollart.config.fields import (
    TYPE,
    chosen_kind,
    describe_type,
    field_types,
    keys_of,
    make_default,
    option_class,
    required_keys,
)
from rollart.config.options import RayOptions
from rollart.config.pools import PoolOptions
from rollart.config.schema import MOVED, Config
from rollart.config.simulation import ProfileOptions, ScoringOptions
from rollart.constraints import fixed_fields
from rollart.errors import ConfigError, UserError
from rollart.models.options import ModelOptions
from rollart.plugins import Kind, add_paths, describe_unread, find, trusted_paths
from rollart.rewards.invoke.options import Reliability
from rollart.sandbox.options import SandboxOptions
from rollart.training.options import TrainingOptions

T = TypeVar("T")
Table = dict[str, Any]
_RENAMED: Mapping[type, Mapping[str, str]] = {
    ModelOptions: {"noise": "warm_start_noise"},
    PoolOptions: dict.fromkeys(("gpu", "hardware", "type", "kind"), "class"),
    ProfileOptions: {
        "reads": "observation_tokens",
        "samples": "completion_tokens",
        "samples_spread": "completion_spread",
    },
    SandboxOptions: {"store": "cache"},
    ScoringOptions: {"most": "max_instances", "keep_s": "idle_s"},
    TrainingOptions: {
        "lr": "learning_rate",
        "lr_warmup_steps": "warmup_steps",
        "lr_schedule": "lr_scheduler_type",
        "lr_scheduler": "lr_scheduler_type",
        "min_lr": "min_lr_ratio",
        "total_training_steps": "decay_steps",
    },
}
"""Keys that had another name, or that people take for another: the word, and the key it means."""
_REMOVED: Mapping[type, Mapping[str, str]] = {
    ModelOptions: {"warm_start_learning_rate": "it is 3e-3, which suits all sizes of tiny models"},
    ProfileOptions: dict.fromkeys(
        ("reset_kind", "step_kind"),
        "times are lognormal (spread 0: constant), or as in the profile named by like",
    ),
    RayOptions: {
        "engine_cpus": "a pool says it with its cpus",
        "restart_s": "the cluster is looked at once a second",
    },
    Reliability: {"queue_wait_s": "a call waits until an instance is free"},
    SandboxOptions: {"start_timeout_s": "a sandbox that has not started in 30 s never will"},
}
"""Keys that no longer exist, and what happens instead; fields marked `Fixed` say it themselves."""
NAMING: Mapping[str, str] = {
    "algorithm": TYPE,
    "engine": "name",
    "model": "path",
    "tasks": "NAME.env",
    "weights": "store",
}
"""The key that is meant where a section is given as one word, such as algorithm=grpo."""
_COMMAND_LINE = "on the command line"
_MOST_NAMES = 8
"""Files of a directory that a message names."""


@dataclass(slots=True)
class Layered:
    """The merged table, and for each key written (dotted) where it was.

    Example:
        >>> read_layers(Path("run.toml"), ["run.steps=8"]).origin("run.steps")
        'on the command line'

    """

    table: Table = field(default_factory=dict[str, Any])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    typed: dict[str, str] = field(default_factory=dict[str, str])
    """What was typed for a key on the command line."""

    def origin(self, key: str) -> str:
        """Say where a key, or the nearest table around it, was written; empty if nowhere."""
        while key and key not in self.origins:
            key = key.rpartition(".")[0]
        return self.origins.get(key, "")

    def put(self, key: str, value: object, *, origin: str) -> None:
        """Give a key this value, whatever was there."""
        *path, last = key.split(".")
        table = self.table
        for part in path:
            if not isinstance(table.get(part), dict):
                table[part] = {}
            table = cast("Table", table[part])
        table[last] = value
        below = f"{key}."
        self.origins = {each: at for each, at in self.origins.items() if not each.startswith(below)}
        self.typed = {each: at for each, at in self.typed.items() if not each.startswith(below)}
        self.origins[key] = origin

    def add(self, table: Mapping[str, Any], *, origins: Mapping[str, str]) -> None:
        """Lay a table over what is there."""
        _merge(self.table, table)
        self.origins.update(origins)


def read_layers(path: Path, overrides: Sequence[str]) -> Layered:
    """Read a file, what it extends, and the overrides."""
    layered = Layered()
    _read_file(path, layered, chain=())
    layer_overrides(layered, overrides)
    return layered


def layer_overrides(layered: Layered, overrides: Sequence[str]) -> None:
    """Lay `key=value` overrides over what is there; a table replaces the one that was there."""
    for override in overrides:
        key, value = parse_override(override)
        layered.put(key, value, origin=_COMMAND_LINE)
        layered.typed[key] = override.partition("=")[2]


def layer_changes(layered: Layered, changes: Sequence[str]) -> None:
    """Lay changes made in Python over what is there; they are written nowhere."""
    for change in changes:
        layered.put(*parse_override(change), origin="")


def parse_override(override: str) -> tuple[str, Any]:
    """Split `a.b=value` into the key and the value, read as TOML or else as text."""
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
        raise UserError(f"override {override!r}: write it as section.key=value")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return key, text.strip()
    return key, parsed["value"] if list(parsed) == ["value"] else text


def _read_file(path: Path, layered: Layered, *, chain: tuple[Path, ...]) -> None:
    resolved = path.resolve()
    if resolved in chain:
        names = " -> ".join(str(each.name) for each in (*chain, resolved))
        raise ConfigError("extends", str(path), f"files extend each other in a circle: {names}")
    text = _read_text(path, extended_by=chain[-1] if chain else None)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    base = table.pop("extends", None)
    if base is not None:
        if not isinstance(base, str):
            raise ConfigError("extends", base, f"must be the path of a TOML file, as text ({path})")
        _read_file(path.parent / base, layered, chain=(*chain, resolved))
    lines = _lines(text)
    origins = {
        key: f"{path}:{lines[key]}" if key in lines else str(path) for key in _keys(table, "")
    }
    layered.add(table, origins=origins)


def _read_text(path: Path, *, extended_by: Path | None) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        named = "" if extended_by is None else f" ({extended_by.name} extends it)"
        raise UserError(f"{path}: no such config file{named}{_neighbours(path)}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; name a TOML file in it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error.reason}") from error


def _neighbours(path: Path) -> str:
    """Say which configs there are near a path that does not exist, the likeliest first."""
    for directory in (path.parent, path.parent / "examples"):
        found = sorted(each.name for each in directory.glob("*.toml"))
        names = [name for name in found if name != "pyproject.toml"]
        if not names:
            continue
        stems = [name.removesuffix(".toml") for name in names]
        if near := difflib.get_close_matches(path.stem, stems, n=1, cutoff=0.75):
            return f"; did you mean {directory / near[0]}.toml?"
        shown = ", ".join(names[:_MOST_NAMES])
        more = len(names) - _MOST_NAMES
        rest = f" and {more} more; list them with: ls {directory}/*.toml" if more > 0 else ""
        return f"; {directory}/ holds {shown}{rest}"
    return ""


def _merge(into: Table, table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if not isinstance(value, Mapping):
            into[key] = value
            continue
        if not isinstance(into.get(key), dict):
            into[key] = {}
        _merge(into[key], cast("Table", value))


def _keys(table: Mapping[str, Any], prefix: str) -> list[str]:
    """List every key of a table and of the tables in it, dotted."""
    keys: list[str] = []
    for key, value in table.items():
        keys.append(prefix + key)
        if isinstance(value, Mapping):
            keys += _keys(cast("Table", value), f"{prefix}{key}.")
    return keys


def _lines(text: str) -> dict[str, int]:
    """Find the line each key is written on; keys in unusual spellings are left out."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            section = header[1] + "."
            lines.setdefault(header[1], number)
        elif entry := re.match(r"\s*([\w.-]+)\s*=", line):
            lines.setdefault(section + entry[1], number)
    return lines


def load_config(
    path: Path | str, overrides: Sequence[str] = (), *, changes: Sequence[str] = ()
) -> Config:
    """Read a config file, apply overrides and changes made in Python, validate everything."""
    path = Path(path)
    layered = read_layers(path, overrides)
    layer_changes(layered, changes)
    run = layered.table.setdefault("run", {})
    if isinstance(run, dict):
        cast("Table", run).setdefault("import_paths", [str(path.resolve().parent)])
        # Dropped here, they are not added to the paths of any worker either.
        cast("Table", run)["import_paths"] = _trusted(cast("Table", run)["import_paths"])
    return OptionBuilder(layered).build(Config, layered.table, "")


def _trusted(paths: object) -> object:
    """Return import paths without those in a directory that is not trusted, if they are paths."""
    if not isinstance(paths, list) or not all(isinstance(each, str) for each in paths):
        return cast("object", paths)
    return list(trusted_paths(cast("list[str]", paths)))


def parse_config(text: str) -> Config:
    """Return the config that `dump_toml` wrote as this text."""
    layered = Layered(table=tomllib.loads(text))
    return OptionBuilder(layered).build(Config, layered.table, "")


def add_import_paths(config: Config) -> None:
    """Let `module:Class` names in the config find the user's own modules."""
    add_paths(config.run.import_paths)


class OptionBuilder:
    """Makes option classes from tables and says where a wrong value was written.

    Example:
        >>> OptionBuilder(Layered()).build(RunOptions, {"steps": 8}, "run").steps
        8

    """

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
            kind = chosen_kind(cls, key)
            values[names[key]] = (
                self._value(hints[key], value, prefix + key)
                if kind is None
                else self._chosen(kind, make_default(cls, key), value, prefix + key)
            )
        for missing in (key for key in required_keys(cls) if names[key] not in values):
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

    def _chosen(self, kind: Kind, default: object, value: object, path: str) -> Any:
        """Make the option class that a section names under `type`."""
        table = dict(self._table(value, path))
        name = table.pop(TYPE, None)
        if name is None:
            return self.build(type(default), table, path)
        where = f"{path}.{TYPE}"
        name = self._value(str, name, where)
        add_paths(_import_paths(self._layered.table))
        try:
            found = find(kind, name, field=where)
        except ConfigError as error:
            raise self._error(where, error.value, error.fix) from error
        if not (isinstance(found, type) and is_dataclass(found)):
            fix = "must be a frozen dataclass: its fields are the keys of the section"
            raise self._error(where, name, fix)
        return self.build(found, table, path)

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
        if isinstance(value, dict):
            return cast("Table", value)
        is_typed = path in self._layered.typed
        fix = f"is a section: write [{path}] and keys below it"
        if isinstance(value, str) and path in NAMING:
            key = f"{path}.{NAMING[path]}"
            meant = f"{key}={value}" if is_typed else f"{key} = {json.dumps(value)}"
            fix = f"is a section; did you mean {meant}?"
        elif is_typed:
            fix = f"is a section: write {path}.KEY=VALUE for a key of it"
        raise self._error(path, value, fix)

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


def _import_paths(table: Table) -> list[str]:
    run = table.get("run")
    paths = cast("Table", run).get("import_paths") if isinstance(run, dict) else None
    return [str(each) for each in cast("list[Any]", paths)] if isinstance(paths, list) else []


def _sections() -> dict[str, type]:
    """Return the class of each section that is not a table of named ones."""
    sections: dict[str, type] = {}
    for section, hint in field_types(Config).items():
        if chosen_kind(Config, section):
            sections[section] = type(make_default(Config, section))
        elif option_class(hint) is hint:
            sections[section] = hint
    return sections


def _places(key: str) -> list[str]:
    """Return where in a config's sections there is such a key, by this name or another."""
    places: list[str] = []
    for section, cls in _sections().items():
        name = _RENAMED.get(cls, {}).get(key, key)
        if name in field_types(cls):
            places.append(f"{section}.{name}")
    return places


def nearest_keys(key: str) -> list[str]:
    """Return the dotted keys, or the section, that a word outside all sections may mean.

    Example:
        >>> nearest_keys("step"), nearest_keys("lr"), nearest_keys("trainig")
        (['run.steps'], ['training.learning_rate'], ['training'])

    """
    if places := _places(key):
        return places
    sections = list(field_types(Config))
    keys = [name for cls in _sections().values() for name in field_types(cls)]
    near = difflib.get_close_matches(key, dict.fromkeys([*sections, *keys]), n=1)
    if not near:
        return []
    return [near[0]] if near[0] in sections else _places(near[0])


def _removed(cls: type, key: str) -> str:
    """Say what happens instead of a key that no longer exists; empty for any other."""
    fixed = fixed_fields(cls).get(key)
    if fixed is None:
        return _REMOVED.get(cls, {}).get(key, "")
    value = next(each.default for each in dataclasses.fields(cls) if each.name == key)
    return f"it is always {json.dumps(value)} ({fixed.why})"


def unknown_key(cls: type, prefix: str, key: str) -> str:
    """Say that a class has no such key, and which was meant or which there are."""
    hints = field_types(cls)
    if prefix and key in field_types(Config):
        return f"unknown key; did you mean the section [{key}]?"
    if instead := _removed(cls, key):
        return f"unknown key; leave it out: {instead}"
    kind = chosen_kind(Config, prefix[:-1]) if prefix[:-1] in field_types(Config) else None
    if kind and (unread := describe_unread(kind, cls, key)):
        return f"unknown key; {unread}"
    if meant := _meant(cls, prefix, key):
        return f"unknown key; did you mean {' or '.join(meant)}?"
    return f"unknown key; {prefix.rstrip('.') or 'a config'} has {', '.join(sorted(hints))}"


def _meant(cls: type, prefix: str, key: str) -> list[str]:
    """Return the dotted keys that were probably meant by an unknown one."""
    if not prefix:
        return nearest_keys(key)
    renamed = _RENAMED.get(cls, {}).get(key)
    if meant := MOVED.get(prefix + key, renamed and prefix + renamed):
        return [meant]
    hints = field_types(cls)
    near = difflib.get_close_matches(key, hints, n=1, cutoff=0.8)
    if not near and (places := _places(key)):
        return places
    near = near or difflib.get_close_matches(key, hints, n=1, cutoff=0.5)
    return [prefix + each for each in near]
