"""Layout: where each array of a version is in one block of bytes, and how that is cut into buckets.

Arrays follow each other in the given order, each aligned to 64 bytes. Buckets are slices of equal
size, so one array may span several buckets and one bucket may hold several arrays. The gaps are
zero, so equal weights give equal bytes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from rollart.errors import InvariantError
from rollart.ports import Array
from rollart.types import ArraySpec

ALIGNMENT_BYTES = 64
NUMBER_KINDS = "biufc"
"""numpy's dtype kinds that a weight may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The positions of a version's arrays.

    Example:
        layout = lay_out({"w": ArraySpec(shape=(8, 16), dtype="<f4")}, bucket_bytes=256)
        (layout.total_bytes, layout.buckets, layout.span(1)) == (512, 2, slice(256, 512))

    """

    arrays: Mapping[str, Mapping[str, Any]]
    """By name: shape, dtype and offset, as JSON values."""
    total_bytes: int
    bucket_bytes: int

    @property
    def buckets(self) -> int:
        """How many buckets there are; at least one."""
        return max(1, -(-self.total_bytes // self.bucket_bytes))

    def span(self, bucket: int) -> slice:
        """Return the bytes a bucket holds."""
        start = bucket * self.bucket_bytes
        return slice(start, min(start + self.bucket_bytes, self.total_bytes))

    def views(self, buffer: Any) -> Mapping[str, Array]:
        """Return the arrays as views of a buffer that holds all the bytes."""
        return view_arrays(self.arrays, buffer)

    def encoded(self) -> dict[str, Any]:
        """Return the layout as JSON values."""
        return {
            "bytes": self.total_bytes,
            "bucket_bytes": self.bucket_bytes,
            "arrays": dict(self.arrays),
        }

    @staticmethod
    def decoded(values: Mapping[str, Any]) -> "Layout":
        """Return the layout of what `encoded` returned."""
        return Layout(
            arrays=values["arrays"],
            total_bytes=values["bytes"],
            bucket_bytes=values["bucket_bytes"],
        )


def view_arrays(entries: Mapping[str, Mapping[str, Any]], buffer: Any) -> Mapping[str, Array]:
    """Return the arrays of a buffer, by name, as views."""
    return MappingProxyType(
        {
            name: np.ndarray(
                tuple(entry["shape"]),
                np.dtype(entry["dtype"]),
                buffer=buffer,
                offset=entry["offset"],
            )
            for name, entry in entries.items()
        }
    )


def specs_of(weights: Mapping[str, Array]) -> dict[str, ArraySpec]:
    """Return the shape and dtype of each array."""
    return {name: _spec_of(array) for name, array in weights.items()}


def _spec_of(array: Array) -> ArraySpec:
    return ArraySpec(shape=array.shape, dtype=array.dtype.str)


def lay_out(specs: Mapping[str, ArraySpec], *, bucket_bytes: int) -> Layout:
    """Return the layout of arrays in buckets of `bucket_bytes`."""
    entries, total_bytes = place_arrays(specs)
    return Layout(arrays=entries, total_bytes=total_bytes, bucket_bytes=bucket_bytes)


def place_arrays(specs: Mapping[str, ArraySpec]) -> tuple[dict[str, dict[str, Any]], int]:
    """Return each array's position and the total size; refuse arrays that are not numbers."""
    entries: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, spec in specs.items():
        dtype = np.dtype(spec.dtype)
        _check_numeric(name, dtype)
        entries[name] = {"shape": list(spec.shape), "dtype": dtype.str, "offset": offset}
        size = math.prod(spec.shape) * dtype.itemsize
        offset += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return entries, max(offset, ALIGNMENT_BYTES)


def _check_numeric(name: str, dtype: "np.dtype[Any]") -> None:
    """Refuse an array that cannot be restored from its bytes alone."""
    if dtype.kind not in NUMBER_KINDS:
        raise InvariantError(
            f"weight {name!r} has dtype {dtype}: "
            "wanted numbers (bfloat16 as the uint16 array of its bits)"
        )


def in_order(
    specs: Mapping[str, ArraySpec], arrays: Iterable[tuple[str, Array]]
) -> Iterator[tuple[str, Array]]:
    """Yield the arrays, checking that they are those that `specs` announced, in that order."""
    expected = iter(specs.items())
    for name, array in arrays:
        wanted, spec = next(expected, ("nothing more", None))
        if (name, _spec_of(array)) != (wanted, spec):
            received = f"{name!r} {_spec_of(array)}"
            raise InvariantError(f"received weight {received}; expected {wanted!r} {spec}")
        yield name, array
    missing = next(expected, None)
    if missing is not None:
        raise InvariantError(f"weight {missing[0]!r} was announced but never sent")


def cut(layout: Layout, arrays: Iterable[tuple[str, Array]]) -> Iterator[Array]:
    """Yield the buckets in order; a bucket that lies within one array is a view, not a copy."""
    cutter = _Cutter(layout)
    for name, array in arrays:
        yield from cutter.take(int(layout.arrays[name]["offset"]), array)
    yield from cutter.rest()


class _Cutter:
    """Holds the one bucket that is being filled."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._index = 0
        self._bucket: Array | None = None

    def take(self, offset: int, array: Array) -> Iterator[Array]:
        """Copy an array's bytes into buckets; yield those that are full."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        while len(content):
            span = self._layout.span(self._index)
            if offset >= span.stop:
                yield self._done()
                continue
            size = min(span.stop - offset, len(content))
            if size == span.stop - span.start:
                self._bucket = content[:size]
            else:
                self._filling(span)[offset - span.start : offset - span.start + size] = content[
                    :size
                ]
            offset, content = offset + size, content[size:]
            if offset == span.stop:
                yield self._done()

    def rest(self) -> Iterator[Array]:
        """Yield the last buckets, which no array filled completely."""
        while self._index < self._layout.buckets:
            yield self._done()

    def _done(self) -> Array:
        bucket = self._filling(self._layout.span(self._index))
        self._index, self._bucket = self._index + 1, None
        return bucket

    def _filling(self, span: slice) -> Array:
        if self._bucket is None:
            self._bucket = np.zeros(span.stop - span.start, np.uint8)
        return self._bucket
