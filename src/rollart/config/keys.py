"""Keys: what a field of an option class is called in files, where that differs from Python."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

_KEY, _MEANT = "key", "meant"


def named(key: str, *, meant: Iterable[str] = ()) -> dict[str, Any]:
    """Return a field's metadata: its key in files, and words that are taken for it by mistake."""
    return {_KEY: key, _MEANT: tuple(meant)}


def keys_of(cls: Any) -> Mapping[str, str]:
    """Return the attribute of each key."""
    return {cast("str", each.metadata.get(_KEY, each.name)): each.name for each in _fields(cls)}


def meant_by(cls: Any, word: str) -> str | None:
    """Return the key that a word is known to be a mistake for."""
    for each in _fields(cls):
        if word in each.metadata.get(_MEANT, ()):
            return each.metadata[_KEY]
    return None


def _fields(cls: Any) -> "tuple[dataclasses.Field[Any], ...]":
    return dataclasses.fields(cls)
