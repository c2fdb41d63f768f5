import asyncio
import io

import pytest

from rollart.rewards.invoke.frames import (
    InstanceMessage,
    Kind,
    pack,
    read_message,
    receive_message,
)
from rollart.serialization.frames import FrameError, make_frame

CALL = InstanceMessage(kind=Kind.CALL, number=7, payload=b"{}")


async def received(data: bytes, limit_bytes: int = 100) -> InstanceMessage | None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await receive_message(reader, limit_bytes=limit_bytes)


async def test_a_frame_is_read_as_it_was_written():
    assert read_message(io.BytesIO(pack(CALL))) == CALL
    assert await received(pack(CALL)) == CALL


async def test_a_frame_cut_short_is_the_end():
    for length in range(len(pack(CALL))):
        assert read_message(io.BytesIO(pack(CALL)[:length])) is None
        assert await received(pack(CALL)[:length]) is None


async def test_a_frame_too_large_or_of_no_kind_is_refused():
    with pytest.raises(FrameError, match="a frame of 2 bytes, more than the limit of 1"):
        await received(pack(CALL), limit_bytes=1)
    with pytest.raises(FrameError, match=r"message.kind must be one of 0, 1, .* got 99"):
        await received(b"".join(make_frame(b'{"kind":99,"number":7}', b"{}")))
    with pytest.raises(FrameError, match="a head of 2000 bytes, more than the limit of 1024"):
        await received(b"".join(make_frame(b" " * 2000)))
    with pytest.raises(FrameError, match=r"starts with b'{\"ki', wanted b'RLA1'"):
        await received(b'{"kind":99,"number":7}')
