"""Changes: which values of a config another one has otherwise."""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, cast

from rollart.config.schema import Config
from rollart.config.writing import dump_toml, toml_value


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
