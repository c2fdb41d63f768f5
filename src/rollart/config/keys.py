"""Keys: what a field of an option class is called in files, where that differs from Python."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

from rollart.plugins import Kind

_KEY, _MEANT, _CHOSEN = "key", "meant", "chosen"
TYPE = "type"
"""The key of a section that says which class the section's other keys are the fields of."""


def named(key: str, *, meant: Iterable[str] = ()) -> dict[str, Any]:
    """Return a field's metadata: its key in files, and words that are taken for it by mistake."""
    return {_KEY: key, _MEANT: tuple(meant)}


def chosen(kind: Kind) -> dict[str, Any]:
    """Return the metadata of a field that holds an option class of the user's choice.

    Its section names the class under `type`: what `plugins.find` finds.
    """
    return {_CHOSEN: kind}


def chosen_kind(cls: Any, key: str) -> Kind | None:
    """Return what kind of class a key's section chooses; None if it does not."""
    return next(
        (e.metadata.get(_CHOSEN) for e in _fields(cls) if e.name == keys_of(cls)[key]), None
    )


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
