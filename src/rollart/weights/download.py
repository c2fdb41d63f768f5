"""Download: one version fetched bucket by bucket and checked before anyone can use it.

Buckets can be fetched as soon as each is stored, long before the version is complete. Only `finish`
returns arrays, and it needs the manifest, which is written last: every bucket must have the
checksum in the manifest. A bucket that does not match is fetched once more, then reported as
damaged.
"""

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np

from rollart.errors import CorruptError
from rollart.ports import Array, Blobs
from rollart.types import Version
from rollart.weights.delta import decode
from rollart.weights.index import Stored
from rollart.weights.layout import Layout

_NONE = -1
"""No data has this checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVersion:
    """A version that is downloaded and checked.

    Example:
        loaded = download.finish()
        loaded.version, loaded.arrays["model.norm.weight"].shape  # 3, (1024,)

    """

    id: str
    version: Version
    flat: Array
    """All bytes, in the order of the layout."""
    layout: Layout
    pull_s: float
    """Seconds spent downloading, without waiting for buckets that were not stored yet."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The weights, read-only."""
        return self.layout.views(self.flat)


@dataclass(slots=True, kw_only=True)
class Download:
    """Downloads the buckets of one version in order.

    Example:
        download = Download(blobs=blobs, stored=stored, base=None, layout=layout)
        while not download.is_complete and download.advance():
            pass

    """

    blobs: Blobs
    stored: Stored
    base: LoadedVersion | None
    """The version that the buckets are changes to; None: they hold all bytes."""
    layout: Layout
    spare: InitVar[Array | None] = None
    """Memory to reuse if it has the right size: new pages cost more than the copy."""
    flat: Array = field(init=False)
    checksums: list[int] = field(default_factory=list[int])
    pull_s: float = 0.0

    def __post_init__(self, spare: Array | None) -> None:
        if spare is None or len(spare) != self.layout.total_bytes:
            spare = np.empty(self.layout.total_bytes, np.uint8)
        spare.flags.writeable = True
        self.flat = spare

    @property
    def is_complete(self) -> bool:
        """Whether every bucket is downloaded."""
        return len(self.checksums) == self.stored.buckets

    def advance(self) -> bool:
        """Download the next bucket; return False if it is not stored yet."""
        start_s = time.perf_counter()
        try:
            self.checksums.append(self._pull(len(self.checksums)))
        except KeyError:
            return False
        self.pull_s += time.perf_counter() - start_s
        return True

    def finish(self) -> LoadedVersion:
        """Check every bucket against the manifest and return the version."""
        start_s = time.perf_counter()
        manifest = read_json(self.blobs, self.stored.manifest_key)
        for index, wanted in enumerate(manifest["crc32"]):
            if self.checksums[index] != wanted and self._pull(index) != wanted:
                raise CorruptError(
                    f"bucket {index} of weights version {self.stored.version} in "
                    f"{self.blobs.place} is damaged: its checksum differs from the manifest; "
                    "publish the version again and check the disk or link"
                )
        self.flat.flags.writeable = False
        self.pull_s += time.perf_counter() - start_s
        return LoadedVersion(
            id=self.stored.id,
            version=self.stored.version,
            flat=self.flat,
            layout=self.layout,
            pull_s=self.pull_s,
        )

    def _pull(self, index: int) -> int:
        span = self.layout.span(index)
        data = memoryview(self.blobs.get(self.stored.bucket_key(index)))
        part = self.flat[span]
        try:
            if self.base is None:
                np.copyto(part, np.frombuffer(data, np.uint8))
            else:
                decode(data, self.base.flat[span], part)
        except (ValueError, IndexError):
            return _NONE
        return zlib.crc32(part.data)


def read_json(blobs: Blobs, key: str, *, is_again: bool = False) -> dict[str, Any]:
    """Return a JSON object of the store; raise KeyError if it is missing.

    The store may be removing it at this moment, so a damaged value is read a second time.
    """
    data = bytes(blobs.get(key))
    try:
        return json.loads(data)
    except ValueError as error:
        if is_again:
            raise CorruptError(f"{key} in {blobs.place} is damaged: {error}") from error
    return read_json(blobs, key, is_again=True)
