"""Layout: where each array of a version lies in one run of bytes, and how it is cut into buckets.

Arrays follow each other in the order given, each aligned to 64 bytes. Buckets are cuts of equal
size through all of it, so an array may lie in several and several in one. The gaps are zero: the
same weights give the same bytes.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from rollart.ports import Array
from rollart.weights.memory import check_numeric

ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of a version's arrays."""

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
        """Return the arrays in a buffer that holds all the bytes."""
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
        """Return what was encoded."""
        return Layout(
            arrays=values["arrays"],
            total_bytes=values["bytes"],
            bucket_bytes=values["bucket_bytes"],
        )


def view_arrays(entries: Mapping[str, Mapping[str, Any]], buffer: Any) -> Mapping[str, Array]:
    """Return the arrays that lie in a buffer, by name."""
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


def lay_out(weights: Mapping[str, Array], *, bucket_bytes: int) -> Layout:
    """Give every array its place in bytes that are cut into buckets."""
    entries, total_bytes = place_arrays(weights)
    return Layout(arrays=entries, total_bytes=total_bytes, bucket_bytes=bucket_bytes)


def place_arrays(weights: Mapping[str, Array]) -> tuple[dict[str, dict[str, Any]], int]:
    """Give every array its place; refuse what bytes alone would not restore."""
    entries: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, array in weights.items():
        check_numeric(name, array)
        entries[name] = {"shape": list(array.shape), "dtype": array.dtype.str, "offset": offset}
        offset += -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return entries, max(offset, ALIGNMENT_BYTES)


class Cutter:
    """Cuts weights into buckets; one that lies within one array is not copied."""

    def __init__(self, layout: Layout, weights: Mapping[str, Array]) -> None:
        self._layout = layout
        placed = [
            (int(layout.arrays[name]["offset"]), np.ascontiguousarray(array).reshape(-1))
            for name, array in weights.items()
            if array.nbytes
        ]
        self._offsets = [offset for offset, _ in placed]
        self._bytes = [array.view(np.uint8) for _, array in placed]

    def bucket(self, index: int) -> Array:
        """Return a bucket's bytes."""
        span = self._layout.span(index)
        first = max(0, bisect_right(self._offsets, span.start) - 1)
        if self._bytes:
            start = span.start - self._offsets[first]
            if start + (span.stop - span.start) <= len(self._bytes[first]):
                return self._bytes[first][start : start + span.stop - span.start]
        return self._gathered(span, first)

    def _gathered(self, span: slice, first: int) -> Array:
        bucket = np.zeros(span.stop - span.start, np.uint8)
        for offset, content in zip(self._offsets[first:], self._bytes[first:], strict=True):
            if offset >= span.stop:
                break
            low, high = max(offset, span.start), min(offset + len(content), span.stop)
            if low < high:
                bucket[low - span.start : high - span.start] = content[low - offset : high - offset]
        return bucket
