"""Frames: how the weight relay and its clients speak over TCP.

A frame is the length of a JSON header, the header, and as many bytes as its `bytes` says. Nothing
is unpickled; both lengths are bounded before anything is made for them.
"""

import json
import socket
import struct
from typing import Any

LARGEST_HEADER_BYTES = 2**16
LARGEST_BODY_BYTES = 2**32
_LENGTH = struct.Struct("<I")


class FrameError(ConnectionError):
    """The other side does not speak this protocol, or hung up in the middle."""


def send_frame(
    connection: socket.socket, header: dict[str, Any], body: bytes | memoryview = b""
) -> None:
    """Send a header and its body."""
    text = json.dumps({**header, "bytes": len(body)}).encode()
    connection.sendall(_LENGTH.pack(len(text)) + text)
    if len(body):
        connection.sendall(body)


def receive_frame(
    connection: socket.socket, *, largest_bytes: int = LARGEST_BODY_BYTES
) -> tuple[dict[str, Any], bytearray] | None:
    """Return the next header and body; None if the other side hung up before it."""
    first = connection.recv(_LENGTH.size)
    if not first:
        return None
    first += _receive(connection, _LENGTH.size - len(first))
    (length,) = _LENGTH.unpack(first)
    if length > LARGEST_HEADER_BYTES:
        raise FrameError(f"a header of {length} bytes: not a frame of the weight relay")
    try:
        header = json.loads(_receive(connection, length))
        size = int(header["bytes"])
    except (ValueError, KeyError, TypeError) as error:
        raise FrameError(f"not a header of the weight relay: {error}") from error
    if not 0 <= size <= largest_bytes:
        raise FrameError(f"a body of {size} bytes: more than {largest_bytes} are refused")
    return header, _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise FrameError("the other side hung up in the middle of a frame")
        view = view[count:]
    return data
