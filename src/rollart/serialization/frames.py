"""Frames: how processes and machines that work together exchange messages.

    magic (4 bytes) · head bytes (u32) · body bytes (u64) · head · body

The head is JSON that says what the message is. The body is bytes as they are: arrays, the weights
of a bucket, a reward call. All pipes and sockets of the project carry these frames; what a head
says is up to the two sides (`serialization.values`, `rewards.invoke.frames`,
`weights.blobs.relay`).

A reader bounds both lengths before it reserves memory for them, and nothing is ever unpickled, so
the other side can send nonsense at no more than the cost of its own connection.
"""

import asyncio
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

from rollart.serialization.codec import CodecError

MAGIC = b"RLA1"
PREFIX = struct.Struct("<4sIQ")
_MOST_PIECES = 512
"""Buffers per writev call; the kernel's limit is 1024."""
_MAPPED_BYTES = 2**20
"""Buffers from this size on are mapped, not allocated."""

Buffer = bytes | bytearray | memoryview
Fill = Callable[[memoryview], int]
"""Reads into a buffer and returns how many bytes came; 0 at the end."""


class FrameError(CodecError):
    """What was read is no frame, or one that is too large."""


class CutFrameError(FrameError):
    """The other side hung up in the middle of a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """The largest frame a reader takes.

    Example:
        FrameLimits(head_bytes=2**16, body_bytes=0)

    """

    head_bytes: int = 2**32 - 1
    body_bytes: int = 2**64 - 1


NO_LIMITS = FrameLimits()
"""For frames from a process this one started from its own code."""


def make_frame(head: bytes, *body: Buffer) -> list[memoryview]:
    """Return a frame as buffers to be written one after another; the body is not copied."""
    pieces = [memoryview(each) for each in body if len(each)]
    prefix = PREFIX.pack(MAGIC, len(head), sum(len(each) for each in pieces))
    return [memoryview(prefix + head), *pieces]


def parse_prefix(prefix: Buffer, limits: FrameLimits = NO_LIMITS) -> tuple[int, int]:
    """Return how many bytes head and body have, by the first bytes of a frame."""
    if len(prefix) < PREFIX.size:
        raise CutFrameError(f"a frame of {len(prefix)} bytes is too short to be one")
    magic, head_bytes, body_bytes = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise FrameError(f"a frame starts with {magic!r}, wanted {MAGIC!r}")
    if head_bytes > limits.head_bytes:
        raise FrameError(
            f"a frame with a head of {head_bytes} bytes, more than the limit of {limits.head_bytes}"
        )
    if body_bytes > limits.body_bytes:
        raise FrameError(
            f"a frame of {body_bytes} bytes, more than the limit of {limits.body_bytes}"
        )
    return head_bytes, body_bytes


def read_frame(
    fill: Fill, *, limits: FrameLimits = NO_LIMITS
) -> tuple[memoryview, memoryview] | None:
    """Return head and body of the next frame, waiting for it; None at the end before one."""
    prefix = _read(fill, PREFIX.size)
    if not prefix:
        return None
    head_bytes, body_bytes = parse_prefix(prefix, limits)
    head = _read(fill, head_bytes)
    body = _read(fill, body_bytes)
    if len(head) < head_bytes or len(body) < body_bytes:
        raise CutFrameError("closed in the middle of a frame")
    return head, body


async def receive_frame(
    reader: asyncio.StreamReader, *, limits: FrameLimits
) -> tuple[bytes, bytes]:
    """Return head and body of the next frame; IncompleteReadError at the end."""
    prefix = await reader.readexactly(PREFIX.size)
    head_bytes, body_bytes = parse_prefix(prefix, limits)
    return await reader.readexactly(head_bytes), await reader.readexactly(body_bytes)


def write_pieces(fd: int, pieces: list[memoryview]) -> None:
    """Write the buffers of a frame to a blocking pipe."""
    start = 0
    while start < len(pieces):
        written = os.writev(fd, pieces[start : start + _MOST_PIECES])
        while start < len(pieces) and written >= len(pieces[start]):
            written -= len(pieces[start])
            start += 1
        if written:
            pieces[start] = pieces[start][written:]


def _read(fill: Fill, wanted: int) -> memoryview:
    try:
        view = memoryview(_reserve(wanted))
    except (MemoryError, OSError, OverflowError) as error:
        raise FrameError(f"a frame announces {wanted} bytes, more than there is memory") from error
    filled = 0
    while filled < wanted:
        got = fill(view[filled:])
        if got == 0:
            break
        filled += got
    return view[:filled]


def _reserve(size: int) -> bytearray | mmap:
    """Return memory for `size` bytes.

    Of a large buffer the pages come from the kernel as they are filled: a bytearray would be
    written twice, first with zeros.
    """
    if size < _MAPPED_BYTES:
        return bytearray(size)
    return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
