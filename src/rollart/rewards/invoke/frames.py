"""Frames: what an instance and its parent say to each other over a socket pair.

A frame is a length, the number of the call, what it is, and JSON. Nothing is pickled, and no frame
is larger than the reader allows.
"""

import asyncio
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

_HEADER = struct.Struct(">IIB")


class Kind(IntEnum):
    """What a frame says."""

    SETTINGS = 0
    """To an instance, first of all: what it needs to know."""
    READY = 1
    """From an instance: it takes calls."""
    CALL = 2
    """To an instance: a call as `payload.encode_call` writes it."""
    REWARDS = 3
    """From an instance: the answer as `payload.encode_rewards` writes it."""
    FAILED = 4
    """From an instance: why there is no answer."""
    LEAVING = 5
    """From an instance: why there is no answer, and that it ends itself now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMessage:
    """One message."""

    kind: Kind
    number: int = 0
    payload: bytes = b""


class FrameError(Exception):
    """What was read is no frame, or too large a one."""


def pack(frame: InstanceMessage) -> bytes:
    """Return a frame as it is written."""
    return _HEADER.pack(len(frame.payload), frame.number, frame.kind) + frame.payload


def read_frame(stream: BinaryIO) -> InstanceMessage | None:
    """Read a frame, waiting for it; None when the other side is gone."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    length, number, kind = _HEADER.unpack(header)
    payload = stream.read(length)
    return (
        InstanceMessage(kind=Kind(kind), number=number, payload=payload)
        if len(payload) == length
        else None
    )


async def receive_frame(
    reader: asyncio.StreamReader, *, limit_bytes: int
) -> InstanceMessage | None:
    """Read a frame without blocking the loop; None when the other side is gone."""
    try:
        length, number, kind = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        if length > limit_bytes:
            raise FrameError(f"a frame of {length} bytes, more than {limit_bytes}")
        payload = await reader.readexactly(length)
        return InstanceMessage(kind=Kind(kind), number=number, payload=payload)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except ValueError as error:
        raise FrameError(str(error)) from error
