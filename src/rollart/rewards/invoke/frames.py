"""What an instance and its parent say to each other over a socket pair.

Each message is a frame (`serialization.frames`): the head says what it is and to which call it
belongs, the body is the payload of the call or of its answer. No frame is larger than the reader
allows.
"""

import asyncio
from dataclasses import dataclass, field
from enum import IntEnum
from typing import BinaryIO

from rollart.serialization import frames
from rollart.serialization.codec import Codec, CodecError
from rollart.serialization.frames import NO_LIMITS, CutFrameError, FrameError, FrameLimits

_HEAD_BYTES = 1024


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
class _Head:
    kind: Kind
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMessage:
    """One message.

    Example:
        InstanceMessage(kind=Kind.CALL, number=7, payload=encode_call(call))

    """

    kind: Kind
    number: int = 0
    """The call it belongs to."""
    payload: bytes = field(default=b"", repr=False)


_CODEC = Codec[_Head](_Head, name="message")


def pack(message: InstanceMessage) -> bytes:
    """Return a message as it is written."""
    head = _CODEC.encode(_Head(kind=message.kind, number=message.number))
    return b"".join(frames.make_frame(head, message.payload))


def read_message(stream: BinaryIO) -> InstanceMessage | None:
    """Read a message from the parent, waiting for it; None when the other side has ended."""
    try:
        frame = frames.read_frame(lambda view: _fill(stream, view), limits=NO_LIMITS)
    except CutFrameError:
        return None
    return None if frame is None else _unpack(*frame)


async def receive_message(
    reader: asyncio.StreamReader, *, limit_bytes: int
) -> InstanceMessage | None:
    """Read a message without blocking the loop; None when the other side has ended."""
    limits = FrameLimits(head_bytes=_HEAD_BYTES, body_bytes=limit_bytes)
    try:
        return _unpack(*await frames.receive_frame(reader, limits=limits))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _fill(stream: BinaryIO, view: memoryview) -> int:
    data = stream.read(len(view))
    view[: len(data)] = data
    return len(data)


def _unpack(head: bytes | memoryview, body: bytes | memoryview) -> InstanceMessage:
    try:
        read = _CODEC.decode(bytes(head))
    except CodecError as error:
        raise FrameError(str(error)) from error
    return InstanceMessage(kind=read.kind, number=read.number, payload=bytes(body))
