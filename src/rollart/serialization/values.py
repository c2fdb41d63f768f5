"""Plain values as frames, for the pipes to worker processes: any of them, arrays as they are.

The head of a frame is the value's structure as JSON, its body the bytes of the arrays. Scalars,
strings, lists and dicts with str keys are themselves in the head. What JSON lacks is an object
with the key `!` naming its kind: tuple, array, bytes, value (a dataclass of `VALUES`), and dict
for a dict that itself has a key `!`. Arrays and bytes lie in the body, aligned to 64 bytes.
Writing hands the arrays' own memory to the kernel; reading fills one buffer that the decoded
arrays are views of.

Only the classes in `VALUES` are ever made, from their fields, so a frame can build nothing else.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any

import numpy as np

from rollart.ports import Array
from rollart.serialization import frames
from rollart.serialization.codec import CodecError
from rollart.serialization.frames import PREFIX, make_frame, parse_prefix
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

_ALIGNMENT_BYTES = 64
_PADDING = bytes(_ALIGNMENT_BYTES)
_DTYPE_KINDS = "biufcSUmM"
_SCALARS = (bool, int, float, str, type(None))


def encode(value: object) -> list[memoryview]:
    """Return the frame of a value as buffers to be written one after another."""
    encoder = _Encoder()
    try:
        tree = encoder.encode(value)
    except RecursionError as error:
        raise CodecError("the value is nested too deeply, or contains itself") from error
    head = json.dumps(tree, separators=(",", ":")).encode("ascii")
    return make_frame(head, *encoder.pieces)


def decode(frame: bytes | bytearray | memoryview) -> Any:
    """Return the value of one whole frame; its arrays are views of `frame`."""
    view = memoryview(frame)
    head_bytes, body_bytes = parse_prefix(view[: PREFIX.size])
    middle = PREFIX.size + head_bytes
    if len(view) != middle + body_bytes:
        raise CodecError(f"a frame of {len(view)} bytes, announced as {middle + body_bytes}")
    return _decode(view[PREFIX.size : middle], view[middle:])


def read_frame(fd: int) -> Any:
    """Read a value from a blocking pipe; EOFError if it ended between two frames."""
    frame = frames.read_frame(lambda view: os.readv(fd, [view]))
    if frame is None:
        raise EOFError("the pipe was closed")
    return _decode(*frame)


class _Encoder:
    """Turns one value into a JSON tree and the buffers it refers to."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self.body_bytes = 0

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
        offset = self.body_bytes
        padding = -len(buffer) % _ALIGNMENT_BYTES
        if len(buffer):
            self.pieces.append(buffer)
        if padding:
            self.pieces.append(memoryview(_PADDING)[:padding])
        self.body_bytes += len(buffer) + padding
        return {"offset": offset, "bytes": len(buffer)}


def _decode(head: memoryview, body: memoryview) -> Any:
    def restore(tagged: dict[str, Any]) -> Any:
        kind = tagged.get("!")
        return tagged if kind is None else _RESTORERS[kind](tagged, body)

    try:
        return json.loads(bytes(head), object_hook=restore)
    except CodecError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"a frame with a damaged head: {error!r}") from error


def _restore_bytes(tagged: dict[str, Any], body: memoryview) -> bytes:
    return bytes(_part(tagged, body))


def _restore_array(tagged: dict[str, Any], body: memoryview) -> Array:
    dtype = np.dtype(str(tagged["dtype"]))
    shape = tuple(int(length) for length in tagged["shape"])
    part = _part(tagged, body)
    if dtype.kind not in _DTYPE_KINDS or min(shape, default=0) < 0:
        raise CodecError(f"a frame with an array of dtype {dtype} and shape {shape}")
    if prod(shape) * dtype.itemsize != len(part):
        raise CodecError(f"a frame with {len(part)} bytes for {dtype} of shape {shape}")
    return np.ndarray(shape, dtype, buffer=part) if len(part) else np.empty(shape, dtype)


def _restore_scalar(tagged: dict[str, Any], body: memoryview) -> Any:
    return _restore_array(tagged, body)[()]


def _restore_value(tagged: dict[str, Any], _: memoryview) -> object:
    return VALUES[tagged["type"]](**tagged["fields"])


def _restore_tuple(tagged: dict[str, Any], _: memoryview) -> tuple[Any, ...]:
    return tuple(tagged["items"])


def _restore_dict(tagged: dict[str, Any], _: memoryview) -> dict[str, Any]:
    return dict(tagged["items"])


def _part(tagged: dict[str, Any], body: memoryview) -> memoryview:
    start, length = int(tagged["offset"]), int(tagged["bytes"])
    if start < 0 or length < 0 or start + length > len(body):
        raise CodecError(f"a frame with {length} bytes at {start} of a body of {len(body)}")
    return body[start : start + length]


_RESTORERS: dict[str, Callable[[dict[str, Any], memoryview], Any]] = {
    "array": _restore_array,
    "bytes": _restore_bytes,
    "dict": _restore_dict,
    "scalar": _restore_scalar,
    "tuple": _restore_tuple,
    "value": _restore_value,
}
