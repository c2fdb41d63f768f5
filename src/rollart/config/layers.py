"""Layers: TOML files that extend each other, and `key=value` overrides, merged into one table.

Later layers win, key by key. Each key remembers where its value came from, so that an error can
name the file and the line.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rollart.errors import ConfigError, UserError

Table = dict[str, Any]


@dataclass(slots=True)
class Layered:
    """The merged table, and for each key written (dotted) where it was."""

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
        layered.put(key, value, origin="on the command line")
        layered.typed[key] = override.partition("=")[2]


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
    text = _read_text(path)
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


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = _neighbours(path)
        raise UserError(f"{path}: no such config file{hint}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; name a TOML file in it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error.reason}") from error


def _neighbours(path: Path) -> str:
    for directory in (path.parent, path.parent / "examples"):
        found = sorted(each.name for each in directory.glob("*.toml"))
        names = [name for name in found if name != "pyproject.toml"][:8]
        if names:
            return f"; {directory}/ holds {', '.join(names)}"
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
