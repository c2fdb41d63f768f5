"""Download: one version fetched bucket by bucket and checked before anyone can use it.

Buckets can be fetched as soon as each is stored, long before the version is complete. Only `finish`
returns arrays, and it needs the manifest, which is written last: every bucket must have the
checksum in the manifest. A bucket that does not match is fetched once more, then reported as
damaged. A bucket may hold all its bytes, or its changes to the previous version (`encode`).
"""

import json
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np

from rollart.errors import CorruptError
from rollart.ports import Array, Blobs
from rollart.types import Version
from rollart.weights.index import Stored
from rollart.weights.layout import Layout

_SAME, _WHOLE, _PLANES = b"s", b"w", b"p"
"""First byte of a payload: no change, all bytes, or planes."""
_ZERO, _RAW, _DEFLATED = 0, 1, 2
"""How a plane is stored."""
_HEADER = struct.Struct("<BQ")
"""Mode and size in bytes of a plane."""
_SAMPLE_BYTES = 1 << 14
_SAMPLES = 4
_WORTH = 0.75
"""Compress a plane if its samples shrink below this share of their size."""


def encode(new: Array, old: Array, *, width: int) -> bytes:
    """Return the changes from old to new bytes; `width` is the size of a number.

    Changes are the exclusive or of old and new bytes, sorted into planes by byte position in a
    number: an optimizer step rarely changes signs and exponents, so those planes are nearly all
    zero, while the last bits of mantissas are noise. A plane that is zero is omitted, one that
    compresses well in a sample is compressed, others are sent as they are. A bucket that would not
    shrink is sent in full.
    """
    changes = np.bitwise_xor(new, old)
    if not changes.any():
        return _SAME
    if len(changes) % width:
        width = 1
    planes = [np.ascontiguousarray(plane) for plane in changes.reshape(-1, width).T]
    packed = [_pack(plane) for plane in planes]
    if sum(len(data) for _, data in packed) >= len(new):
        return _WHOLE + new.tobytes()
    header = bytes([width]) + b"".join(_HEADER.pack(mode, len(data)) for mode, data in packed)
    return b"".join([_PLANES, header, *(data for _, data in packed)])


def decode(payload: memoryview, old: Array, out: Array) -> None:
    """Write the new bytes to `out`; raise ValueError if the payload is damaged."""
    kind, body = bytes(payload[:1]), payload[1:]
    if kind == _SAME:
        np.copyto(out, old)
    elif kind == _WHOLE:
        np.copyto(out, np.frombuffer(body, np.uint8))
    elif kind == _PLANES:
        _decode_planes(body, old, out)
    else:
        raise ValueError(f"unknown coding {kind!r}")


def _pack(plane: Array) -> tuple[int, bytes]:
    if not plane.any():
        return _ZERO, b""
    step = max(1, len(plane) // _SAMPLES)
    sample = b"".join(plane[at : at + _SAMPLE_BYTES].tobytes() for at in range(0, len(plane), step))
    if len(zlib.compress(sample, 1)) < _WORTH * len(sample):
        return _DEFLATED, zlib.compress(plane.data, 1)
    return _RAW, plane.tobytes()


def _decode_planes(body: memoryview, old: Array, out: Array) -> None:
    width = body[0]
    changes = np.zeros((len(out) // width, width), np.uint8)
    data = 1 + width * _HEADER.size
    for place in range(width):
        mode, size = _HEADER.unpack_from(body, 1 + place * _HEADER.size)
        packed = body[data : data + size]
        data += size
        if mode == _ZERO:
            continue
        try:
            plain = zlib.decompress(packed) if mode == _DEFLATED else packed
        except zlib.error as error:
            raise ValueError(str(error)) from error
        changes[:, place] = np.frombuffer(plain, np.uint8)
    np.bitwise_xor(changes.reshape(-1), old, out=out)


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
    except (ValueError, RecursionError) as error:
        if is_again:
            raise CorruptError(f"{key} in {blobs.place} is damaged: {error}") from error
    return read_json(blobs, key, is_again=True)
