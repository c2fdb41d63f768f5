"""The process that runs reward functions: `python -m rollart.rewards.invoke.instance FD PID`.

It reads calls from its socket and writes one answer for each, until the socket ends. A call runs
in the main thread if the instance takes one at a time, else in one of as many threads. Each has an
event loop that runs on between calls, so that what a function keeps there (clients, warm sandboxes)
lives on; another thread waits for the next call meanwhile. The process does not outlive its parent:
idle, it sees the end of its socket; busy, the kernel kills it. What a function prints to the two
standard outputs goes to a pipe that the parent drains.
"""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import BinaryIO, cast

from rollart.cluster.child_process import prepare_child
from rollart.errors import ScoreError
from rollart.rewards.invoke.frames import InstanceMessage, Kind, pack, read_message
from rollart.rewards.payload import decode_call, encode_rewards
from rollart.rewards.registry import pin
from rollart.rewards.scoring import score

_MESSAGE_CHARACTERS = 4000
_OUT_OF_MEMORY_CODE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an instance receives before its first call."""

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

    def run(self) -> None:
        """Answer calls until the socket ends, and with it the process."""
        self._write(InstanceMessage(kind=Kind.READY))
        if self._settings.concurrency == 1:
            asyncio.run(self._work(lambda: read_message(self._stream)))
            return
        frames: SimpleQueue[InstanceMessage | None] = SimpleQueue()
        for _ in range(self._settings.concurrency):
            work = self._work(frames.get)
            threading.Thread(target=asyncio.run, args=(work,), daemon=True).start()
        while (frame := read_message(self._stream)) is not None:
            frames.put(frame)
        os._exit(0)

    async def _work(self, take: Callable[[], InstanceMessage | None]) -> None:
        """Answer one call after another; whatever else ends this ends the process."""
        loop = asyncio.get_running_loop()
        # Not one of the loop's own threads, which functions may all use.
        waiting = ThreadPoolExecutor(1)
        code = 0
        try:
            while (frame := await loop.run_in_executor(waiting, take)) is not None:
                await self._answer(frame)
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            # At once: what functions left running need not end, and nobody is there to wait.
            os._exit(code)

    async def _answer(self, frame: InstanceMessage) -> None:
        is_out_of_memory = False
        try:
            call = decode_call(frame.payload, limit_bytes=self._settings.payload_bytes)
            payload = encode_rewards(await score(call))
            kind = Kind.REWARDS
        except (ScoreError, MemoryError) as error:
            is_out_of_memory = MemoryError in (type(error), type(error.__cause__))
            message = self._out_of_memory(str(error)) if is_out_of_memory else str(error)
            payload = describe(error, message)
            kind = Kind.LEAVING if is_out_of_memory else Kind.FAILED
        self._write(InstanceMessage(kind=kind, number=frame.number, payload=payload))
        if is_out_of_memory:
            # What filled the memory may still be there; the next call deserves a new process.
            os._exit(_OUT_OF_MEMORY_CODE)

    def _out_of_memory(self, message: str) -> str:
        mib = self._settings.memory_bytes / 2**20
        return f"{message}: more memory than the {mib:g} MiB an instance may hold"

    def _write(self, frame: InstanceMessage) -> None:
        with self._lock:
            self._stream.write(pack(frame))
            self._stream.flush()


def describe(error: ScoreError | MemoryError, message: str = "") -> bytes:
    """Return why there is no answer as JSON, in other words than the error's own if given."""
    is_final, is_own = False, False
    if isinstance(error, ScoreError):
        is_final, is_own = error.is_final, error.is_own
    cut = (message or str(error))[:_MESSAGE_CHARACTERS]
    return json.dumps({"error": cut, "is_final": is_final, "is_own": is_own}).encode()


def restore(payload: bytes) -> ScoreError:
    """Return the error that was described."""
    tree = json.loads(payload)
    return ScoreError(
        str(tree["error"]), is_final=bool(tree["is_final"]), is_own=bool(tree["is_own"])
    )


def main() -> None:
    """Serve the socket named on the command line."""
    fd, parent_pid = (int(argument) for argument in sys.argv[1:])
    prepare_child(parent_pid, ignored=(signal.SIGINT,), fds=(fd,))
    with socket.socket(fileno=fd) as link:
        stream = cast("BinaryIO", link.makefile("rwb"))
        first = read_message(stream)
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
