"""Frames are read as they were written, and refused before memory is reserved for them."""

import asyncio
import io

import pytest

from rollart.serialization.frames import (
    MAGIC,
    PREFIX,
    CutFrameError,
    FrameError,
    FrameLimits,
    make_frame,
    read_frame,
    receive_frame,
)

FRAME = b"".join(make_frame(b'{"a":1}', b"body", b"", memoryview(b" more")))


def read(data: bytes, **limits: int):
    return read_frame(io.BytesIO(data).readinto, limits=FrameLimits(**limits))


def test_a_frame_is_read_as_it_was_written():
    assert read(FRAME) == (b'{"a":1}', b"body more")
    assert read(b"") is None


async def test_a_frame_is_received_as_it_was_written():
    reader = asyncio.StreamReader()
    reader.feed_data(FRAME)
    reader.feed_eof()
    assert await receive_frame(reader, limits=FrameLimits()) == (b'{"a":1}', b"body more")


def test_a_frame_that_comes_in_pieces_is_read_whole():
    stream = io.BytesIO(FRAME)
    assert read_frame(lambda view: stream.readinto(view[:3])) == (b'{"a":1}', b"body more")


def test_a_large_body_is_read_as_it_was_written_and_may_be_changed():
    sent = bytes(range(256)) * 2**13
    _, body = read(b"".join(make_frame(b"{}", sent)))
    assert body == sent
    body[0] = 7
    assert (body[0], body[1]) == (7, 1)
    with pytest.raises(CutFrameError):
        read(b"".join(make_frame(b"{}", sent))[:-1])


def test_a_frame_cut_short_is_told_from_the_end():
    for length in range(1, len(FRAME)):
        with pytest.raises(CutFrameError):
            read(FRAME[:length])


def test_what_is_too_large_or_no_frame_is_refused():
    with pytest.raises(FrameError, match="a head of 7 bytes, more than the limit of 6"):
        read(FRAME, head_bytes=6)
    with pytest.raises(FrameError, match="a frame of 9 bytes, more than the limit of 8"):
        read(FRAME, body_bytes=8)
    with pytest.raises(FrameError, match="starts with b'GET ', wanted b'RLA1'"):
        read(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(FrameError, match="more than there is memory"):
        read(PREFIX.pack(MAGIC, 1, 2**62) + b"1")
