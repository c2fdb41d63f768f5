"""Delta: a bucket as its changes to the previous version, exact to the bit.

Changes are the exclusive or of old and new bytes, sorted into planes by byte position in a number:
an optimizer step rarely changes signs and exponents, so those planes are nearly all zero, while the
last bits of mantissas are noise. A plane that is zero is omitted, one that compresses well in a
sample is compressed, others are sent as they are. A bucket that would not shrink is sent in full.
"""

import struct
import zlib

import numpy as np

from rollart.ports import Array

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
    """Return the changes from old to new bytes; `width` is the size of a number."""
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
