"""Programs as plain subprocesses: limits, but no isolation.

For machines without bubblewrap and programs one would run oneself; the options refuse it unless
`allow_plain` is true. A program sees the host's files and network. Memory, processor time and the
size of files are limited for each process by itself; a process that leaves its session outlives
the program, but a run does not wait for it, whatever it holds open.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollart.errors import ConfigError
from rollart.sandbox.cell import classify
from rollart.sandbox.messages import check
from rollart.sandbox.options import SandboxOptions
from rollart.types import Program, ProgramEnd, ProgramLimits, ProgramResult

LIMIT = (
    'ulimit -c 0 && ulimit -St "$1" && ulimit -Ht "$(($1 + 1))" && ulimit -v "$2" && '
    'ulimit -f "$3" && shift 3 && exec "$@"'
)
BLOCK_BYTES = 512
CHUNK = 65536
GRACE_S = 1.0
"""Seconds after a program's end in which its outputs must end too, or somebody else holds them."""


@dataclass(slots=True, kw_only=True)
class Kept:
    """What is kept of one output, and how much there was."""

    limit: int
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether there was more than is kept."""
        return self.total > len(self.data)


class Watched(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells the end of a process itself: asyncio's own wait waits for its outputs too."""

    def __init__(self) -> None:
        super().__init__(limit=CHUNK, loop=asyncio.get_running_loop())
        self.has_exited = asyncio.Event()

    def process_exited(self) -> None:
        """Take the end."""
        super().process_exited()
        self.has_exited.set()


class PlainSandbox:
    """Runs each program as a process group of this machine."""

    def __init__(self, options: SandboxOptions) -> None:
        if not options.allow_plain:
            raise ConfigError("sandbox.allow_plain", options.allow_plain, "must be true")
        self.limits = options.limits
        self._seats = asyncio.Semaphore(options.concurrency)
        self._running: set[asyncio.subprocess.Process] = set()

    def describe(self) -> Mapping[str, str]:
        """Say what holds programs here, limit by limit."""
        alone = "rlimit, each process by itself"
        return {
            "user": "the caller",
            "seccomp": "none",
            "memory": alone,
            "cpu": alone,
            "processes": "not limited",
            "priority": "the caller's",
            "root": "all of this machine",
        }

    async def run(self, program: Program) -> ProgramResult:
        """Run a program to its end or its limits; cancelling the await kills it."""
        check(program)
        async with self._seats:
            called_at = asyncio.get_running_loop().time()
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                _write_files(Path(folder), program)
                return await self._run_in(folder, program, called_at)

    async def close(self) -> None:
        """Kill what runs."""
        for process in tuple(self._running):
            _kill(process)
            await process.wait()

    async def _run_in(self, folder: str, program: Program, called_at: float) -> ProgramResult:
        loop = asyncio.get_running_loop()
        transport, watched = await loop.subprocess_exec(
            Watched,
            *_limited(program.limits),
            *program.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=_environment(folder),
            start_new_session=True,
        )
        process = asyncio.subprocess.Process(transport, watched, loop)
        self._running.add(process)
        started_at = loop.time()
        reached: ProgramEnd | None = None
        out, err = (Kept(limit=program.limits.output_bytes) for _ in range(2))
        reading = asyncio.create_task(_communicate(process, program.stdin, out, err))
        try:
            try:
                async with asyncio.timeout(program.limits.wall_s):
                    await watched.has_exited.wait()
            except TimeoutError:
                reached = "wall"
            ended_at = loop.time()
            _kill(process)
            is_whole = bool((await asyncio.wait({reading}, timeout=GRACE_S))[0])
        finally:
            _kill(process)
            reading.cancel()
            await watched.has_exited.wait()
            await asyncio.wait({reading})
            transport.close()
            self._running.discard(process)
        code = process.returncode or 0
        end, exit_code = classify({"signal" if code < 0 else "code": str(abs(code))}, reached)
        return ProgramResult(
            end=end,
            exit_code=exit_code,
            stdout=bytes(out.data),
            stderr=bytes(err.data),
            is_cut=out.is_cut or err.is_cut or not is_whole,
            wall_s=ended_at - started_at,
            start_s=started_at - called_at,
        )


def _limited(limits: ProgramLimits) -> list[str]:
    values = (int(limits.cpu_s) + 1, limits.memory_bytes // 1024, limits.files_bytes // BLOCK_BYTES)
    return ["/bin/sh", "-c", LIMIT, "sh", *map(str, values)]


def _environment(folder: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    return {"PATH": path, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}


def _write_files(folder: Path, program: Program) -> None:
    for path, data in program.files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


async def _communicate(
    process: asyncio.subprocess.Process, stdin: bytes, out: Kept, err: Kept
) -> None:
    """Feed a program and read its outputs to their ends."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_feed(process, stdin))
        tasks.create_task(_read(process.stdout, out))
        tasks.create_task(_read(process.stderr, err))


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader, kept: Kept) -> None:
    """Read an output to its end, keep its beginning, throw away the rest."""
    while data := await stream.read(CHUNK):
        kept.data += data[: kept.limit - len(kept.data)]
        kept.total += len(data)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a program's process group; its leader may have ended before the rest."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
