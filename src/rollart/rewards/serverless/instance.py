"""The process that runs reward functions: `python -m rollart.rewards.serverless.instance FD PID`.

It reads calls from its socket and writes one answer for each, until the socket ends. A call runs
in the main thread if the instance takes one at a time, else in one of as many threads. It does not
outlive its parent: idle, it sees the end of its socket; busy, the kernel kills it. What a function
prints to the two standard outputs goes to a pipe that the parent drains.
"""

import asyncio
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import BinaryIO, cast

from rollart.errors import ScoreError
from rollart.rewards.loading import pin
from rollart.rewards.payload import decode_call, encode_rewards
from rollart.rewards.scoring import score
from rollart.rewards.serverless.frames import Frame, Kind, pack, read_frame

_PR_SET_PDEATHSIG = 1
_MESSAGE_CHARACTERS = 4000
_OUT_OF_MEMORY_CODE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an instance is told before its first call."""

    path: tuple[str, ...]
    """Where it imports from."""
    concurrency: int
    """Calls it is given at once."""
    memory_bytes: int
    """Memory it may hold."""
    payload_bytes: int
    """Most bytes of a call."""
    functions: tuple[str, ...] | None = None
    """All it may run; None: whatever is named."""

    def encode(self) -> bytes:
        """Return the settings as JSON."""
        return json.dumps(asdict(self)).encode()


class _Server:
    """Answers calls on one socket."""

    def __init__(self, stream: BinaryIO, settings: Settings) -> None:
        self._stream = stream
        self._settings = settings
        self._lock = threading.Lock()
        self._lanes = threading.local()

    def run(self) -> None:
        """Answer calls until the socket ends."""
        if self._settings.concurrency == 1:
            self._read(self._answer)
            return
        with ThreadPoolExecutor(self._settings.concurrency) as pool:
            self._read(lambda frame: pool.submit(self._answer, frame))
            # Threads that never end must not keep a process whose parent is gone.
            os._exit(0)

    def _read(self, take: Callable[[Frame], object]) -> None:
        self._write(Frame(kind=Kind.READY))
        while (frame := read_frame(self._stream)) is not None:
            take(frame)

    def _answer(self, frame: Frame) -> None:
        is_out_of_memory = False
        try:
            call = decode_call(frame.payload, limit_bytes=self._settings.payload_bytes)
            payload = encode_rewards(self._runner().run(score(call)))
            kind = Kind.REWARDS
        except (ScoreError, MemoryError) as error:
            is_out_of_memory = MemoryError in (type(error), type(error.__cause__))
            is_final = isinstance(error, ScoreError) and error.is_final
            message = self._out_of_memory(str(error)) if is_out_of_memory else str(error)
            payload = describe(message, is_final=is_final)
            kind = Kind.LEAVING if is_out_of_memory else Kind.FAILED
        self._write(Frame(kind=kind, number=frame.number, payload=payload))
        if is_out_of_memory:
            # What filled the memory may still be there; the next call deserves a new process.
            os._exit(_OUT_OF_MEMORY_CODE)

    def _out_of_memory(self, message: str) -> str:
        mib = self._settings.memory_bytes / 2**20
        return f"{message}: more memory than the {mib:g} MiB an instance may hold"

    def _runner(self) -> asyncio.Runner:
        """Return this thread's event loop: one for all its calls, so that clients can be kept."""
        if not hasattr(self._lanes, "runner"):
            self._lanes.runner = asyncio.Runner()
        return self._lanes.runner

    def _write(self, frame: Frame) -> None:
        with self._lock:
            self._stream.write(pack(frame))
            self._stream.flush()


def describe(message: str, *, is_final: bool) -> bytes:
    """Return why there is no answer as JSON."""
    cut = message[:_MESSAGE_CHARACTERS]
    return json.dumps({"error": cut, "is_final": is_final}).encode()


def restore(payload: bytes) -> ScoreError:
    """Return the error that was described."""
    tree = json.loads(payload)
    return ScoreError(str(tree["error"]), is_final=bool(tree["is_final"]))


def main() -> None:
    """Serve the socket named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fd, parent_pid = (int(argument) for argument in sys.argv[1:])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the parent of this instance is gone")
    os.set_inheritable(fd, False)
    with socket.socket(fileno=fd) as link:
        stream = cast("BinaryIO", link.makefile("rwb"))
        first = read_frame(stream)
        if first is None:
            return
        settings = Settings(**json.loads(first.payload))
        sys.path[:] = settings.path
        if settings.functions is not None:
            pin(settings.functions)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (settings.memory_bytes, hard))
        _Server(stream, settings).run()


if __name__ == "__main__":
    main()
