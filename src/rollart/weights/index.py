"""The index: the one value of a bucket store that changes, naming everything else that is there.

    head             which versions are stored, which of them are visible, which is being written
    ID.layout        names, shapes, dtypes and offsets, known before the first bucket
    ID.0, ID.1 …     the buckets
    ID.manifest      the layout again, with the checksum of every bucket

All other values are written once under an id of their own and never again, so a reader that holds
an id reads one version or nothing. A version becomes visible by the index that names it, which is
written after everything else. What a dead writer left is named by `writing`: the next one removes
it. Nothing has to be listed, which not every store can do.

The index also says whose versions they are. Two runs that are given one place would otherwise load
each other's weights, with right checksums: a version's number says nothing of its run.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rollart.errors import StorageError
from rollart.serialization.codec import Codec, CodecError
from rollart.types import Version

FORMAT = 2
HEAD = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One version's values in the store.

    Example:
        Stored(id="3-9f2c", version=3, buckets=4, is_visible=True)

    """

    id: str
    version: Version
    buckets: int
    base: str | None = None
    """The id whose bytes the buckets are changes to; None: they hold all bytes."""
    is_visible: bool = False
    """Whether it may be fetched; an invisible one is stored only as a base of others."""

    @property
    def layout_key(self) -> str:
        """The key of its layout."""
        return f"{self.id}.layout"

    @property
    def manifest_key(self) -> str:
        """The key of its manifest."""
        return f"{self.id}.manifest"

    def bucket_key(self, index: int) -> str:
        """Return the key of a bucket."""
        return f"{self.id}.{index}"

    @property
    def keys(self) -> list[str]:
        """The keys of all its values."""
        buckets = [self.bucket_key(index) for index in range(self.buckets)]
        return [self.manifest_key, *buckets, self.layout_key]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIndex:
    """What a store holds.

    Example:
        StoreIndex(
            stored=(Stored(id="3-9f2c", version=3, buckets=4, is_visible=True),),
            run="quickstart-5d1e07aa",
            process="a1b2c3d44026531836-4711",
        )

    """

    stored: tuple[Stored, ...] = ()
    writing: Stored | None = None
    run: str = ""
    """The run that publishes here; "": it has ended, or none was named."""
    process: str = ""
    """The machine and the process id of its writer."""

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
        """Return a version and all versions it is built on, itself first."""
        chain = [stored]
        while chain[-1].base is not None:
            base = self.find(chain[-1].base)
            if base is None:
                break
            chain.append(base)
        return chain

    def with_version(self, stored: Stored, *, keep: int) -> "StoreIndex":
        """Return the index that makes a version visible and hides all but the newest `keep`.

        Versions that are not older are replaced: they are of a run that was resumed before them.
        """
        others = [each for each in self._visible if each.version < stored.version]
        newest = sorted([*others, stored], key=lambda each: each.version)[-keep:]
        whole = replace(self, stored=(*self.stored, stored), writing=None)
        needed = {each.id for top in newest for each in whole.chain(top)}
        shown = {each.id for each in newest}
        return replace(
            whole,
            stored=tuple(
                replace(each, is_visible=each.id in shown)
                for each in whole.stored
                if each.id in needed
            ),
        )

    @property
    def _visible(self) -> Iterable[Stored]:
        return (each for each in self.stored if each.is_visible)

    def encode(self) -> bytes:
        """Return the index as JSON."""
        return _FILE.encode(
            _File(
                format=FORMAT,
                stored=self.stored,
                writing=self.writing,
                run=self.run,
                process=self.process,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The index as it is stored."""

    format: int
    stored: tuple[Stored, ...]
    writing: Stored | None
    run: str
    process: str


_FILE = Codec[_File](_File, name="index")


def _check_format(data: bytes) -> None:
    """Refuse the index of another version of rollart, whatever its fields are."""
    try:
        written = json.loads(data)["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # decoding says what is wrong
    if written != FORMAT:
        raise CodecError(f"format {written} instead of {FORMAT}")


def decode_index(data: bytes, *, place: str) -> StoreIndex:
    """Return the index stored at `place`."""
    try:
        _check_format(data)
        file = _FILE.decode(data)
    except CodecError as error:
        raise StorageError(
            f"the list of weight versions in {place} is damaged: {error}; empty the store"
        ) from error
    return StoreIndex(stored=file.stored, writing=file.writing, run=file.run, process=file.process)
