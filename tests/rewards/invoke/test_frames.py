import asyncio
import io

import pytest

from rollart.rewards.invoke.frames import (
    FrameError,
    InstanceMessage,
    Kind,
    pack,
    read_frame,
    receive_frame,
)

CALL = InstanceMessage(kind=Kind.CALL, number=7, payload=b"{}")


async def received(data: bytes, limit_bytes: int = 100) -> InstanceMessage | None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await receive_frame(reader, limit_bytes=limit_bytes)


async def test_a_frame_is_read_as_it_was_written():
    assert read_frame(io.BytesIO(pack(CALL))) == CALL
    assert await received(pack(CALL)) == CALL


async def test_a_frame_cut_short_is_the_end():
    for length in range(len(pack(CALL))):
        assert read_frame(io.BytesIO(pack(CALL)[:length])) is None
        assert await received(pack(CALL)[:length]) is None


async def test_a_frame_too_large_or_of_no_kind_is_refused():
    with pytest.raises(FrameError, match="a frame of 2 bytes, more than 1"):
        await received(pack(CALL), limit_bytes=1)
    with pytest.raises(FrameError, match="99 is not a valid Kind"):
        await received(pack(CALL)[:8] + b"\x63{}")
