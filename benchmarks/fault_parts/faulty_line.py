"""A line to an HTTP function that fails in a chosen way, once per key."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class FaultyLine:
    """Relays requests to a port of this machine; what each key meets is in `faults`.

    500: answered here, nothing is forwarded. drop: forwarded, but the answer is lost with the
    connection. duplicate: forwarded twice at the same time.
    """

    port: int
    faults: Mapping[str, str]
    met: set[str] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while (request := await _read(reader)) is not None:
                answer = await self._carry(*request)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _carry(self, headers: dict[str, str], raw: bytes) -> bytes | None:
        key = headers["idempotency-key"]
        fault = self.faults.get(key, "") if key not in self.met else ""
        self.met.add(key)
        match fault:
            case "500":
                return b"HTTP/1.1 500 X\r\ncontent-length: 4\r\n\r\noops"
            case "drop":
                await self._ask(raw)
                return None
            case "duplicate":
                answers = await asyncio.gather(self._ask(raw), self._ask(raw))
                return answers[0]
            case _:
                return await self._ask(raw)

    async def _ask(self, raw: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(raw)
            answer = await _read(reader)
            assert answer is not None
            return answer[1]
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes] | None:
    """Read a whole request or response."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
    headers = {name.lower(): value.strip() for name, _, value in lines}
    return headers, head + await reader.readexactly(int(headers.get("content-length", 0)))


@asynccontextmanager
async def faulty_line(port: int, faults: Mapping[str, str]) -> AsyncIterator[str]:
    """Open a line to a port; yield its URL."""
    line = FaultyLine(port, faults)
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0, limit=2**20)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
