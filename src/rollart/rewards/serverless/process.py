"""One instance as its parent sees it: a child process, its socket and what it prints.

Whatever a function does there, the parent's terminal stays clean: output is read, its end kept for
the reason of a crash, the rest thrown away. `end` kills the process and all it started, and reaps
it; it is safe at any time.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from rollart.rewards.serverless.frames import Frame, FrameError, Kind, pack, receive_frame
from rollart.rewards.serverless.instance import Settings

_TAIL_BYTES = 400
_FRAME_BYTES = 64 * 2**20


class _Output(asyncio.Protocol):
    """Reads what a process prints: counts it and keeps its end."""

    def __init__(self, limit_bytes: int, on_flood: Callable[[], None]) -> None:
        self.tail = b""
        self.count_bytes = 0
        self._limit_bytes = limit_bytes
        self._on_flood = on_flood

    def data_received(self, data: bytes) -> None:
        """Take some output."""
        self.tail = (self.tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        self.count_bytes += len(data)
        if self.count_bytes > self._limit_bytes:
            self._on_flood()


class Instance:
    """A child process that runs reward functions."""

    def __init__(self, *, output_bytes: int) -> None:
        self.kill_reason = ""
        self._output_bytes = output_bytes
        self._output = _Output(output_bytes, self._flooded)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._pipe: asyncio.ReadTransport | None = None

    async def start(self, settings: Settings) -> bool:
        """Start the process; return whether it came to take calls."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            read_fd, write_fd = os.pipe()
            pipe = undo.enter_context(os.fdopen(read_fd, "rb", 0))
            try:
                with theirs:
                    self._process = _spawn(theirs.fileno(), write_fd)
            finally:
                os.close(write_fd)
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
            self._pipe, _ = await loop.connect_read_pipe(lambda: self._output, pipe)
            undo.pop_all()
        self._writer.write(pack(Frame(kind=Kind.SETTINGS, payload=settings.encode())))
        first = await self.receive()
        return first is not None and first.kind is Kind.READY

    def send(self, number: int, payload: bytes) -> None:
        """Hand over a call."""
        assert self._writer is not None
        self._output.count_bytes = 0
        self._writer.write(pack(Frame(kind=Kind.CALL, number=number, payload=payload)))

    async def receive(self) -> Frame | None:
        """Wait for the next frame; None if the process is gone or talks nonsense."""
        assert self._reader is not None
        try:
            return await receive_frame(self._reader, limit_bytes=_FRAME_BYTES)
        except FrameError as error:
            self.kill(f"its instance wrote nonsense: {error}")
            return None

    def kill(self, reason: str) -> None:
        """Kill the process and what it started; the first reason is kept."""
        self.kill_reason = self.kill_reason or reason
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._writer is not None:
            # What escaped the group may still hold the socket: its end is not waited for.
            self._writer.transport.abort()

    async def end(self) -> str:
        """Make sure the process is gone and its pipes are closed; return how it ended."""
        how = "it could not be started"
        if self._process is not None:
            how = await self._reap(self._process)
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        if self._pipe is not None:
            self._pipe.close()
        return how

    async def _reap(self, process: subprocess.Popen[bytes]) -> str:
        # A process that ends by itself closes its socket a moment before its code is known.
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 0.0 if self.kill_reason else 1.0)
        was_by_itself = process.returncode is not None and not self.kill_reason
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = await asyncio.to_thread(process.wait)
        if not was_by_itself:
            return self.kill_reason or "its instance closed its socket and was killed"
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        words = self._output.tail.decode(errors="replace").strip()
        return f"its instance ended ({ended})" + (f"; last words: {words}" if words else "")

    def _flooded(self) -> None:
        self.kill(f"it printed more than {self._output_bytes} bytes and was killed: print less")


def _spawn(socket_fd: int, output_fd: int) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C does not reach it, and what it starts can be killed with it.
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "rollart.rewards.serverless.instance"),
            *(str(socket_fd), str(os.getpid())),
        ],
        pass_fds=(socket_fd,),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
    )
