"""Plain values as frames on a pipe: JSON for structure, raw buffers for arrays, never pickle.

    magic (4 bytes) · header bytes (u32) · payload bytes (u64) · JSON header · payload

Scalars, strings, lists and dicts with str keys are themselves in the header. What JSON lacks is an
object with the key `!` naming its kind: tuple, array, bytes, value (a dataclass of `VALUES`), and
dict for a dict that itself has a key `!`. Arrays and bytes lie in the payload, aligned to 64
bytes. Writing hands the arrays' own memory to the kernel; reading fills one buffer that the
decoded arrays are views of.

Only the classes in `VALUES` are ever made, from their fields, so a frame can build nothing else.
"""

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any

import numpy as np

from rollart.errors import RollartError
from rollart.ports import Array
from rollart.types import (
    ArraySteps,
    Completion,
    EngineInfo,
    Failure,
    Request,
    Sampling,
    StepReport,
    Task,
    TokenTurns,
    Trajectory,
    TrajectoryInfo,
    Turn,
)

# pyright: reportUnknownArgumentType=false


VALUES: dict[str, type] = {
    value.__name__: value
    for value in (
        ArraySteps,
        Completion,
        EngineInfo,
        Failure,
        Request,
        Sampling,
        StepReport,
        Task,
        TokenTurns,
        Trajectory,
        TrajectoryInfo,
        Turn,
    )
}
"""The dataclasses that may cross, by name."""

_MAGIC = b"RLA1"
_PREFIX = struct.Struct("<4sIQ")
_ALIGNMENT_BYTES = 64
_PADDING = bytes(_ALIGNMENT_BYTES)
_DTYPE_KINDS = "biufcSUmM"
_SCALARS = (bool, int, float, str, type(None))
_MOST_PIECES = 512
"""Buffers per writev call; the kernel's limit is 1024."""


class CodecError(RollartError):
    """A value that cannot cross, or bytes that are no frame."""


def encode(value: object) -> list[memoryview]:
    """Return the frame of a value as buffers to be written one after another."""
    encoder = _Encoder()
    try:
        tree = encoder.encode(value)
    except RecursionError as error:
        raise CodecError("the value is nested too deeply, or contains itself") from error
    header = json.dumps(tree, separators=(",", ":")).encode("ascii")
    prefix = _PREFIX.pack(_MAGIC, len(header), encoder.payload_bytes)
    return [memoryview(prefix + header), *encoder.pieces]


def decode(frame: bytes | bytearray | memoryview) -> Any:
    """Return the value of one whole frame; its arrays are views of `frame`."""
    view = memoryview(frame)
    header_bytes, payload_bytes = _parse_prefix(view[: _PREFIX.size])
    if len(view) != _PREFIX.size + header_bytes + payload_bytes:
        raise CodecError(
            f"a frame of {len(view)} bytes, announced as "
            f"{_PREFIX.size + header_bytes + payload_bytes}"
        )
    middle = _PREFIX.size + header_bytes
    return _decode(view[_PREFIX.size : middle], view[middle:])


def write_pieces(fd: int, pieces: list[memoryview]) -> None:
    """Write what `encode` returned to a blocking pipe."""
    start = 0
    while start < len(pieces):
        written = os.writev(fd, pieces[start : start + _MOST_PIECES])
        while start < len(pieces) and written >= len(pieces[start]):
            written -= len(pieces[start])
            start += 1
        if written:
            pieces[start] = pieces[start][written:]


def read_frame(fd: int) -> Any:
    """Read a value from a blocking pipe; EOFError if it ended between two frames."""
    prefix = _read(fd, _PREFIX.size)
    if not prefix:
        raise EOFError("the pipe was closed")
    header_bytes, payload_bytes = _parse_prefix(prefix)
    header = _read(fd, header_bytes)
    payload = _read(fd, payload_bytes)
    if len(header) < header_bytes or len(payload) < payload_bytes:
        raise CodecError("the pipe was closed in the middle of a frame")
    return _decode(header, payload)


def _read(fd: int, wanted: int) -> memoryview:
    try:
        view = np.empty(wanted, np.uint8).data
    except (MemoryError, ValueError) as error:
        raise CodecError(f"a frame announces {wanted} bytes, more than there is memory") from error
    filled = 0
    while filled < wanted:
        got = os.readv(fd, [view[filled:]])
        if got == 0:
            break
        filled += got
    return view[:filled]


def _parse_prefix(prefix: memoryview) -> tuple[int, int]:
    if len(prefix) < _PREFIX.size:
        raise CodecError(f"a frame of {len(prefix)} bytes is too short to be one")
    magic, header_bytes, payload_bytes = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise CodecError(f"a frame starts with {magic!r}, wanted {_MAGIC!r}")
    return header_bytes, payload_bytes


class _Encoder:
    """Turns one value into a JSON tree and the buffers it refers to."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self.payload_bytes = 0

    def encode(self, value: Any) -> object:
        if isinstance(value, np.generic) and not isinstance(value, float | str | bytes):
            return {**self._array(np.asarray(value)), "!": "scalar"}
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, list):
            return self._items(value)
        if isinstance(value, tuple):
            return {"!": "tuple", "items": self._items(value)}
        if isinstance(value, Mapping):
            return self._mapping(value)
        return self._leaf(value)

    def _leaf(self, value: Any) -> object:
        if isinstance(value, np.ndarray):
            return {**self._array(value), "!": "array"}
        if isinstance(value, bytes | bytearray):
            return {"!": "bytes", **self._place(memoryview(value))}
        if VALUES.get(type(value).__name__) is type(value):
            return self._dataclass(value)
        raise CodecError(
            f"a {type(value).__module__}.{type(value).__qualname__} cannot cross a pipe: "
            "send JSON values, tuples, bytes, numpy arrays or the values of rollart.types"
        )

    def _items(self, items: Sequence[Any]) -> list[object]:
        if all(type(item) in _SCALARS for item in items):
            return list(items)
        return [self.encode(item) for item in items]

    def _mapping(self, mapping: Mapping[Any, Any]) -> object:
        encoded: dict[str, object] = {}
        for key, value in mapping.items():
            if not isinstance(key, str):
                raise CodecError(f"a dict with the key {key!r} cannot cross a pipe: use str keys")
            encoded[key] = self.encode(value)
        if "!" in encoded:
            return {"!": "dict", "items": [[key, value] for key, value in encoded.items()]}
        return encoded

    def _array(self, array: Array) -> dict[str, object]:
        if array.dtype.kind not in _DTYPE_KINDS:
            raise CodecError(f"an array of dtype {array.dtype} cannot cross a pipe: send numbers")
        # Bytes of any dtype: not every dtype has a buffer format, uint8 has.
        flat = np.ascontiguousarray(array).reshape(-1)
        raw = flat.view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
        shape = list(array.shape)
        return {"dtype": array.dtype.str, "shape": shape, **self._place(raw.data)}

    def _dataclass(self, value: Any) -> dict[str, object]:
        encoded = {field.name: self.encode(getattr(value, field.name)) for field in fields(value)}
        return {"!": "value", "type": type(value).__name__, "fields": encoded}

    def _place(self, buffer: memoryview) -> dict[str, object]:
        offset = self.payload_bytes
        padding = -len(buffer) % _ALIGNMENT_BYTES
        if len(buffer):
            self.pieces.append(buffer)
        if padding:
            self.pieces.append(memoryview(_PADDING)[:padding])
        self.payload_bytes += len(buffer) + padding
        return {"offset": offset, "bytes": len(buffer)}


def _decode(header: memoryview, payload: memoryview) -> Any:
    def restore(tagged: dict[str, Any]) -> Any:
        kind = tagged.get("!")
        return tagged if kind is None else _RESTORERS[kind](tagged, payload)

    try:
        return json.loads(bytes(header), object_hook=restore)
    except CodecError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"a frame with a damaged header: {error!r}") from error


def _restore_bytes(tagged: dict[str, Any], payload: memoryview) -> bytes:
    return bytes(_part(tagged, payload))


def _restore_array(tagged: dict[str, Any], payload: memoryview) -> Array:
    dtype = np.dtype(str(tagged["dtype"]))
    shape = tuple(int(length) for length in tagged["shape"])
    part = _part(tagged, payload)
    if dtype.kind not in _DTYPE_KINDS or min(shape, default=0) < 0:
        raise CodecError(f"a frame with an array of dtype {dtype} and shape {shape}")
    if prod(shape) * dtype.itemsize != len(part):
        raise CodecError(f"a frame with {len(part)} bytes for {dtype} of shape {shape}")
    return np.ndarray(shape, dtype, buffer=part) if len(part) else np.empty(shape, dtype)


def _restore_scalar(tagged: dict[str, Any], payload: memoryview) -> Any:
    return _restore_array(tagged, payload)[()]


def _restore_value(tagged: dict[str, Any], _: memoryview) -> object:
    return VALUES[tagged["type"]](**tagged["fields"])


def _restore_tuple(tagged: dict[str, Any], _: memoryview) -> tuple[Any, ...]:
    return tuple(tagged["items"])


def _restore_dict(tagged: dict[str, Any], _: memoryview) -> dict[str, Any]:
    return dict(tagged["items"])


def _part(tagged: dict[str, Any], payload: memoryview) -> memoryview:
    start, length = int(tagged["offset"]), int(tagged["bytes"])
    if start < 0 or length < 0 or start + length > len(payload):
        raise CodecError(f"a frame with {length} bytes at {start} of a payload of {len(payload)}")
    return payload[start : start + length]


_RESTORERS: dict[str, Callable[[dict[str, Any], memoryview], Any]] = {
    "array": _restore_array,
    "bytes": _restore_bytes,
    "dict": _restore_dict,
    "scalar": _restore_scalar,
    "tuple": _restore_tuple,
    "value": _restore_value,
}
