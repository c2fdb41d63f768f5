"""Plain subprocesses: programs run with limits, but without isolation.

For machines without bubblewrap and for programs you would run yourself; refused unless
`allow_plain` is true. A program sees the host's files and network. Memory, processor time and file
size are limited for each process separately. A process that leaves its session outlives the
program, but a run does not wait for it, even if it keeps an output open (`GRACE_S`).
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
from rollart.ports import Talk
from rollart.sandbox.messages import check
from rollart.sandbox.options import SandboxOptions
from rollart.sandbox.process import PipeConversation, classify
from rollart.types import Program, ProgramEnd, ProgramLimits, ProgramResult

LIMIT = (
    'ulimit -c 0 && ulimit -St "$1" && ulimit -Ht "$(($1 + 1))" && ulimit -v "$2" && '
    'ulimit -f "$3" && shift 3 && exec "$@"'
)
BLOCK_BYTES = 512
CHUNK = 65536
GRACE_S = 1.0
"""Seconds to wait for the outputs to close after a program's end; another process may hold them."""


@dataclass(slots=True, kw_only=True)
class OutputBuffer:
    """The first `limit` bytes of one output, and how many there were in all.

    Example:
        >>> OutputBuffer(limit=4, data=bytearray(b"hell"), total=5).is_cut
        True

    """

    limit: int
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether some bytes were dropped."""
        return self.total > len(self.data)

    def take(self, data: bytes) -> None:
        """Keep the beginning and drop the rest."""
        self.data += data[: self.limit - len(self.data)]
        self.total += len(data)


class ExitWatcher(asyncio.subprocess.SubprocessStreamProtocol):
    """Signals the exit of the process itself; asyncio's `wait` also waits for its outputs."""

    def __init__(self) -> None:
        super().__init__(limit=CHUNK, loop=asyncio.get_running_loop())
        self.has_exited = asyncio.Event()

    def process_exited(self) -> None:
        """Record that the process has exited."""
        super().process_exited()
        self.has_exited.set()


class PlainSandbox:
    """Runs each program as a process group on this machine."""

    def __init__(self, options: SandboxOptions) -> None:
        if not options.allow_plain:
            raise ConfigError("sandbox.allow_plain", options.allow_plain, "must be true")
        self.limits = options.limits
        self._slots = asyncio.Semaphore(options.concurrency)
        self._running: set[asyncio.subprocess.Process] = set()

    def describe(self) -> Mapping[str, str]:
        """Return which mechanism enforces each limit."""
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

    async def run(
        self, program: Program, *, talk: Talk | None = None, is_trusted: bool = False
    ) -> ProgramResult:
        """Run a program until it ends or reaches a limit; cancelling the await kills it."""
        check(program)
        async with contextlib.nullcontext() if is_trusted else self._slots:
            called_at = asyncio.get_running_loop().time()
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                _write_files(Path(folder), program)
                return await self._run_in(folder, program, called_at, talk)

    async def close(self) -> None:
        """Kill all running programs."""
        for process in tuple(self._running):
            _kill(process)
            await process.wait()

    async def _run_in(
        self, folder: str, program: Program, called_at: float, talk: Talk | None
    ) -> ProgramResult:
        loop = asyncio.get_running_loop()
        transport, watcher = await loop.subprocess_exec(
            ExitWatcher,
            *_limited(program.limits),
            *program.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=_environment(folder),
            start_new_session=True,
        )
        process = asyncio.subprocess.Process(transport, watcher, loop)
        self._running.add(process)
        started_at = loop.time()
        reached: ProgramEnd | None = None
        out, err = (OutputBuffer(limit=program.limits.output_bytes) for _ in range(2))
        talking = _Talking(process, talk, limit=program.limits.output_bytes) if talk else None
        heard = out if talking is None else talking
        reading = asyncio.create_task(_communicate(process, program.stdin, heard, err))
        try:
            try:
                async with asyncio.timeout(program.limits.wall_s):
                    await watcher.has_exited.wait()
            except TimeoutError:
                reached = "wall"
            ended_at = loop.time()
            # The program has ended, but processes it started may still hold its outputs open.
            _kill(process)
            is_whole = bool((await asyncio.wait({reading}, timeout=GRACE_S))[0])
        finally:
            _kill(process)
            reading.cancel()
            if talking is not None:
                await talking.close()
            await watcher.has_exited.wait()
            await asyncio.wait({reading})
            transport.close()
            self._running.discard(process)
        code = 0 if talking is not None and talking.is_over else process.returncode or 0
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


class _Talking:
    """Talks to a program in a task of its own, and kills the program when everything is said."""

    def __init__(self, process: asyncio.subprocess.Process, talk: Talk, *, limit: int) -> None:
        assert process.stdin is not None
        self.is_over = False
        self._process = process
        self._said = PipeConversation(process.stdin, limit=limit)
        self._task = asyncio.create_task(self._run(talk))

    def take(self, data: bytes) -> None:
        """Hear some output."""
        if not self._said.feed(data):
            _kill(self._process)

    async def close(self) -> None:
        """Stop talking; raise what `talk` raised."""
        self._said.end()
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    async def _run(self, talk: Talk) -> None:
        try:
            await talk(self._said)
            self.is_over = True
        finally:
            _kill(self._process)


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
    process: asyncio.subprocess.Process,
    stdin: bytes,
    out: "OutputBuffer | _Talking",
    err: OutputBuffer,
) -> None:
    """Write a program's input and read both outputs until they close."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as tasks:
        if isinstance(out, OutputBuffer):
            tasks.create_task(_feed(process, stdin))
        tasks.create_task(_read(process.stdout, out))
        tasks.create_task(_read(process.stderr, err))


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader, kept: "OutputBuffer | _Talking") -> None:
    """Read an output until it closes."""
    while data := await stream.read(CHUNK):
        kept.take(data)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a program's process group, which may outlive its leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
