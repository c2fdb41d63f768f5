"""`rollart function serve` as a process of its own, and servers that fail in a chosen way."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

TOKEN = "secret"
_MAIN = "import sys; from rollart.cli import main; sys.exit(main())"


@asynccontextmanager
async def served(*functions: str, arguments: tuple[str, ...] = (), token: str = TOKEN):
    """Serve functions on a free port; yield the URL."""
    environment = {name: value for name, value in os.environ.items() if name != "PORT"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MAIN, "function", "serve", "--port", "0", "--instances", "2"),
        *arguments,
        *functions,
        env={**environment, "ROLLART_FUNCTION_TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        assert line.startswith("serving "), line
        yield line.split()[-1]
    finally:
        process.terminate()
        await process.communicate()


@contextmanager
def serving(*functions: str, path: Path) -> Iterator[str]:
    """Serve functions of a directory on a free port, without an event loop; yield the URL."""
    environment = {name: value for name, value in os.environ.items() if name != "PORT"}
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "function", "serve", "--port", "0", *functions],
        cwd=path,
        env={**environment, "ROLLART_FUNCTION_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving "), line
        yield line.split()[-1]
    finally:
        process.terminate()
        process.communicate()


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """Serve connections with `answer`; yield the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def response(status: int, body: bytes) -> bytes:
    """A whole HTTP response."""
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body
