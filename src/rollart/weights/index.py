"""The head: the one value of a bucket store that changes, naming everything else that is there.

    head             which versions are stored, which of them are visible, which is being written
    ID.layout        names, shapes, dtypes and offsets, known before the first bucket
    ID.0, ID.1 …     the buckets
    ID.manifest      the layout again, with the checksum of every bucket

All other values are written once under an id of their own and never again, so a reader that holds
an id reads one version or nothing. A version becomes visible by the head that names it, which is
written after everything else. What a dead writer left is named by `writing`: the next one removes
it. Nothing has to be listed, which not every store can do.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rollart.errors import StorageError
from rollart.types import Version

FORMAT = 1
HEAD = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One version's values in the store."""

    id: str
    version: Version
    buckets: int
    base: str | None = None
    """The id whose bytes the buckets are changes to; None: they hold all bytes."""
    is_visible: bool = False
    """Whether it may be fetched; what is stored but not visible is a base of what is."""

    @property
    def layout_key(self) -> str:
        """Where its layout is."""
        return f"{self.id}.layout"

    @property
    def manifest_key(self) -> str:
        """Where its manifest is."""
        return f"{self.id}.manifest"

    def bucket_key(self, index: int) -> str:
        """Where a bucket is."""
        return f"{self.id}.{index}"

    @property
    def keys(self) -> list[str]:
        """All its values."""
        buckets = [self.bucket_key(index) for index in range(self.buckets)]
        return [self.manifest_key, *buckets, self.layout_key]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIndex:
    """What a store holds."""

    stored: tuple[Stored, ...] = ()
    writing: Stored | None = None

    def visible(self, version: Version) -> Stored | None:
        """Return the visible version of this number."""
        return next((each for each in self._visible if each.version == version), None)

    @property
    def latest(self) -> Stored | None:
        """The newest visible version."""
        return max(self._visible, key=lambda each: each.version, default=None)

    def find(self, id_: str) -> Stored | None:
        """Return what is stored under an id."""
        return next((each for each in self.stored if each.id == id_), None)

    def chain(self, stored: Stored) -> list[Stored]:
        """Return a version and all it is built on, itself first."""
        chain = [stored]
        while chain[-1].base is not None:
            base = self.find(chain[-1].base)
            if base is None:
                break
            chain.append(base)
        return chain

    def with_version(self, stored: Stored, *, keep: int) -> "StoreIndex":
        """Return the head that makes a version visible and hides all but the newest `keep`.

        Versions that are not older are replaced: they are of a run this one went back behind.
        """
        others = [each for each in self._visible if each.version < stored.version]
        newest = sorted([*others, stored], key=lambda each: each.version)[-keep:]
        whole = replace(self, stored=(*self.stored, stored), writing=None)
        needed = {each.id for top in newest for each in whole.chain(top)}
        shown = {each.id for each in newest}
        return StoreIndex(
            stored=tuple(
                replace(each, is_visible=each.id in shown)
                for each in whole.stored
                if each.id in needed
            )
        )

    @property
    def _visible(self) -> Iterable[Stored]:
        return (each for each in self.stored if each.is_visible)

    def encode(self) -> bytes:
        """Return the head as JSON."""
        return json.dumps(
            {
                "format": FORMAT,
                "stored": [_encode(each) for each in self.stored],
                "writing": None if self.writing is None else _encode(self.writing),
            }
        ).encode()


def decode_index(data: bytes, *, place: str) -> StoreIndex:
    """Return the head written at `place`."""
    try:
        values = json.loads(data)
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']} instead of {FORMAT}")
        writing = values["writing"]
        return StoreIndex(
            stored=tuple(_decode(each) for each in values["stored"]),
            writing=None if writing is None else _decode(writing),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"the list of weight versions in {place} is damaged: {error}; empty the store"
        ) from error


def _encode(stored: Stored) -> dict[str, Any]:
    return {name: getattr(stored, name) for name in Stored.__dataclass_fields__}


def _decode(values: dict[str, Any]) -> Stored:
    return Stored(**values)
