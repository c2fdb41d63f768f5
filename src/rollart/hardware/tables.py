"""Entries: checked tables of figures, shipped as data files or given by the user.

An entry that loads is complete: every field is present or has a default, has the right type and is
in its range. Shipped entries and a user's entries pass the same checks.
"""

import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from typing import cast

from rollart.errors import ConfigError
from rollart.plugins import HARDWARE_TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One table of figures and its name in errors.

    Example:
        Entry(section="gpus.mine", values={"memory_gb": 80}).number("memory_gb") == 80.0

    """

    section: str
    """The name of the table in messages, such as `gpus.H20`."""
    values: Mapping[str, object]
    """The figures by field."""

    def check_fields(self, allowed: Collection[str]) -> None:
        """Raise ConfigError for an unknown field, with the nearest known one."""
        for key, value in self.values.items():
            if key not in allowed:
                near = get_close_matches(key, allowed, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                fix = f"no such field; {hint}fields: {', '.join(allowed)}"
                raise ConfigError(f"{self.section}.{key}", value, fix)

    def number(self, key: str, *, may_be_zero: bool = False) -> float:
        """Return a finite number above zero, or at least zero with `may_be_zero`."""
        value = self._present(key, "a number")
        wanted = "at least 0" if may_be_zero else "above 0"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"must be a number {wanted}")
        if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
            raise self.error(key, f"must be {wanted} and finite")
        return float(value)

    def whole(self, key: str, *, least: int = 1) -> int:
        """Return a whole number of at least `least`."""
        value = self._present(key, "a whole number")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"must be a whole number of at least {least}")
        return value

    def text(self, key: str, *, default: str) -> str:
        """Return a text that is not empty, or the default if the field is missing."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, "must be a text that is not empty")
        return value

    def error(self, key: str, fix: str) -> ConfigError:
        """Return a ConfigError that names this field and its value."""
        return ConfigError(f"{self.section}.{key}", self.values.get(key), fix)

    def _present(self, key: str, kind: str) -> object:
        if key not in self.values:
            raise self.error(key, f"is missing; give {kind}")
        return self.values[key]


def shipped(file: str, *, table: str) -> dict[str, Mapping[str, object]]:
    """Return the entries of one table of a shipped data file, by name."""
    text = resources.files(HARDWARE_TABLES).joinpath("data", file).read_text(encoding="utf-8")
    return cast("dict[str, Mapping[str, object]]", tomllib.loads(text)[table])


def unknown(field: str, name: str, *, known: Collection[str]) -> ConfigError:
    """Return the error for an unknown name: the nearest names, then all."""
    hint = ", ".join(_nearest(name.casefold(), {each.casefold(): each for each in known}))
    near = f"nearest: {hint}; " if hint else ""
    return ConfigError(field, name, f"not known; {near}must be one of {', '.join(known)}")


def _nearest(folded: str, known: Mapping[str, str]) -> list[str]:
    begun = [each for each in known if folded and each.startswith(folded)]
    alike = get_close_matches(folded, known)
    return [known[each] for each in dict.fromkeys([*begun, *alike])][:3]
