"""One started sandbox: runs one program, reports how it ended, and is removed.

Limits are enforced from outside: wall time by a timer, processor time and memory by the control
group's counters, so a program cannot switch them off. Killing a sandbox kills its process 1; the
kernel then kills every other process of the namespace. `end` returns only after bubblewrap has
been waited for, so no process outlives its sandbox.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace

from rollart.errors import SandboxError
from rollart.ports import Talk
from rollart.sandbox.cgroups import ControlGroup, CpuUsage, find_children, read_usage
from rollart.sandbox.messages import Setting, decode_words, encode, read_frame
from rollart.types import Program, ProgramEnd, ProgramLimits, ProgramResult

LEAST_LOOK_S = 0.02
"""Shortest pause between two reads of the processor time."""
KILLED = 128 + signal.SIGKILL


@dataclass(slots=True, kw_only=True)
class ProgramStatus:
    """What is known about a program while it runs.

    Example:
        >>> status = ProgramStatus(started_at=12.5, report={"code": "0", "is_full": "0"})

    """

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    started_at: float | None = None
    report: Mapping[str, str] | None = None
    """The runner's last frame, written when the program ended."""
    reached: ProgramEnd | None = None
    """The limit the program was killed for."""
    is_cut: bool = False
    """Whether some output was dropped."""
    before: CpuUsage | None = None
    """Processor usage of the group when the program started."""
    waited_s: float | None = None
    """How long it waited for a processor, if it reached its wall limit."""
    cpu_s: float | None = None
    """What it used without a group that counts, if it reached its wall limit."""
    is_over: bool = False
    """Whether it was killed because everything was said to it."""
    failure: BaseException | None = None
    """What `talk` raised."""


class PipeConversation:
    """Talks to a program through the stream of its input and the bytes read from its output."""

    def __init__(self, stdin: asyncio.StreamWriter, *, limit: int) -> None:
        self._stdin = stdin
        self._reader = asyncio.StreamReader(limit=limit)
        self._left = limit

    async def send(self, data: bytes) -> None:
        """Write to the program's input; does nothing after its end."""
        with contextlib.suppress(ConnectionError):
            self._stdin.write(data)
            await self._stdin.drain()

    async def read_line(self) -> bytes:
        """Return the next line of its output; empty after its end or beyond the limit."""
        try:
            return await self._reader.readline()
        except ValueError:
            return b""

    def feed(self, data: bytes) -> bool:
        """Take in some output; return False if that was more than the limit."""
        self._left -= len(data)
        if self._left >= 0:
            self._reader.feed_data(data)
        return self._left >= 0

    def end(self) -> None:
        """Note that there is no more output."""
        self._reader.feed_eof()


class SandboxProcess:
    """A started sandbox whose runner waits for its one program."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        *,
        pid: int,
        group: ControlGroup | None,
        uid: int | None,
        single_filter: bytes = b"",
        meter: ControlGroup | None = None,
    ) -> None:
        """Take a started process.

        `single_filter` keeps a program one process where no group limits its memory; `meter` is a
        group that limits nothing and only measures.
        """
        self.uid = uid
        self._single_filter = single_filter
        self._meter = meter
        self._process = process
        self._pid = pid
        """Process 1 of the sandbox, by its number on the host."""
        self._pidfd = os.pidfd_open(pid)
        self._group = group
        self._is_ended = False
        self._is_discarded = False

    @property
    def is_alive(self) -> bool:
        """Whether its runner still runs."""
        return self._process.returncode is None

    async def run(
        self,
        program: Program,
        *,
        called_at: float,
        talk: Talk | None = None,
        is_trusted: bool = False,
    ) -> ProgramResult:
        """Run a program, then end the sandbox, also after an error."""
        try:
            status = ProgramStatus()
            limits = program.limits
            if self._group is not None:
                self._group.limit(memory_bytes=limits.memory_bytes, processes=limits.processes)
            setting = self._setting(limits, is_trusted=is_trusted)
            message = encode(program, replace(setting, has_talk=talk is not None))
            assert self._process.stdin is not None
            said: PipeConversation | None = None
            with self._watch_memory(status):
                async with asyncio.TaskGroup() as tasks:
                    beside = [
                        tasks.create_task(self._feed(message)),
                        tasks.create_task(self._watch_cpu(limits, status)),
                    ]
                    if talk is not None:
                        said = PipeConversation(self._process.stdin, limit=limits.output_bytes)
                        beside.append(tasks.create_task(self._talk(talk, said, status)))
                    await self._follow(limits, status, said)
                    for task in beside:
                        task.cancel()
            if status.failure is not None:
                raise status.failure
            return self._conclude(status, called_at)
        finally:
            await self.end()

    def discard(self) -> None:
        """Kill the sandbox because nobody wants its result any more."""
        self._is_discarded = True
        self.kill()

    def kill(self, reason: ProgramEnd | None = None, status: ProgramStatus | None = None) -> None:
        """Kill all processes inside; keep the first reason given."""
        if status is not None and status.reached is None:
            status.reached = reason
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def end(self) -> None:
        """Kill the remaining processes, wait for them and remove the control group."""
        if not self._is_ended:
            self.kill()
            await self._process.wait()
        # Checked again: another caller may have ended it during the wait.
        if self._is_ended:
            return
        self._is_ended = True
        os.close(self._pidfd)
        for group in filter(None, (self._group, self._meter)):
            await group.remove()

    def _setting(self, limits: ProgramLimits, *, is_trusted: bool) -> Setting:
        rlimits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": int(limits.cpu_s) + 1,
            "RLIMIT_FSIZE": limits.files_bytes,
            "RLIMIT_NOFILE": 1024,
        }
        if self._group is not None:
            return Setting(rlimits=rlimits, uid=self.uid)
        # Without a control group the kernel limits each process separately.
        rlimits["RLIMIT_AS"] = limits.memory_bytes
        rlimits["RLIMIT_NPROC"] = limits.processes + 2
        if is_trusted or not self._single_filter:
            return Setting(rlimits=rlimits, uid=self.uid)
        # The files are memory too, and so are the buffers of pipes, messages and signals.
        rlimits["RLIMIT_AS"] -= min(limits.files_bytes, limits.memory_bytes // 2)
        rlimits |= {"RLIMIT_NOFILE": 128, "RLIMIT_SIGPENDING": 256, "RLIMIT_MSGQUEUE": 0}
        return Setting(
            rlimits=rlimits,
            uid=self.uid,
            single_filter=self._single_filter,
            memory_bytes=limits.memory_bytes,
        )

    async def _feed(self, message: bytes) -> None:
        """Send the runner its program; `_follow` detects a runner that died."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(message)
            await self._process.stdin.drain()

    async def _talk(self, talk: Talk, said: PipeConversation, status: ProgramStatus) -> None:
        """Talk to the program until everything is said, then kill it."""
        try:
            await talk(said)
            status.is_over = True
        except asyncio.CancelledError:
            raise
        except Exception as error:
            status.failure = error
        self.kill()

    async def _follow(
        self, limits: ProgramLimits, status: ProgramStatus, said: PipeConversation | None
    ) -> None:
        """Read the runner's frames until the program ended or was killed."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        assert self._process.stdout is not None
        try:
            while (frame := await read_frame(self._process.stdout)) is not None:
                match frame:
                    case b"s", _ if timer is None:
                        status.started_at = loop.time()
                        status.before = self._group.usage() if self._group else None
                        timer = loop.call_later(limits.wall_s, self._stop, status)
                    case b"o", data if said is not None:
                        status.is_cut = not said.feed(data)
                    case b"o", data:
                        _keep(status, status.stdout, data, limits.output_bytes)
                    case b"e", data:
                        _keep(status, status.stderr, data, limits.output_bytes)
                    case b"c", _:
                        status.is_cut = True
                    case b"x", data:
                        status.report = decode_words(data)
                        return
                    case _:
                        pass
                if said is not None and status.is_cut:
                    # Of a conversation nothing may be missing.
                    self.kill("killed", status)
        finally:
            if timer is not None:
                timer.cancel()
            if said is not None:
                said.end()

    def _stop(self, status: ProgramStatus) -> None:
        """Kill the sandbox at its wall limit and note how long it waited for a processor."""
        if self._group is not None and status.before is not None:
            status.waited_s = self._group.usage().waited_since(status.before)
        elif children := find_children(self._pid):
            # The program started with this run, so all that it used and waited for belongs to it.
            usage = read_usage(children)
            status.cpu_s = usage.cpu_s
            status.waited_s = max(usage.waits_s.values(), default=None)
        self.kill("wall", status)

    async def _watch_cpu(self, limits: ProgramLimits, status: ProgramStatus) -> None:
        """Kill the sandbox when its processes together have used their processor time."""
        if self._group is None:
            return
        before = self._group.cpu_s()
        while (left := limits.cpu_s - (self._group.cpu_s() - before)) > 0:
            # On n processors the remaining time cannot be used up sooner than this.
            soonest = left / (os.cpu_count() or 1)
            await asyncio.sleep(max(soonest, LEAST_LOOK_S))
        self.kill("cpu", status)

    @contextlib.contextmanager
    def _watch_memory(self, status: ProgramStatus) -> Generator[None]:
        """Kill the sandbox when the kernel reports that its memory ran out."""
        if self._group is None:
            yield
            return
        loop = asyncio.get_running_loop()
        event = self._group.watch_memory()
        if event is None:
            yield
            return
        loop.add_reader(event, self.kill, "memory", status)
        try:
            yield
        finally:
            loop.remove_reader(event)
            os.close(event)

    def _conclude(self, status: ProgramStatus, called_at: float) -> ProgramResult:
        if status.reached is None and self._group is not None and self._group.memory_kills():
            status.reached = "memory"
        if status.reached is None and status.report is None and not status.is_over:
            if status.started_at is None or self._is_discarded:
                raise SandboxError("the sandbox died before its program ended")
            # It started its program, so the program may be why: the caller can try once more.
            status.reached = "lost"
        report = {"code": "0"} if status.is_over else status.report or {}
        end, exit_code = classify(report, status.reached)
        started_at = status.started_at or called_at
        before = status.before
        return ProgramResult(
            end=end,
            exit_code=exit_code,
            stdout=bytes(status.stdout),
            stderr=bytes(status.stderr),
            is_cut=status.is_cut,
            wall_s=asyncio.get_running_loop().time() - started_at,
            start_s=started_at - called_at,
            cpu_s=self._group.cpu_s() - before.cpu_s if self._group and before else status.cpu_s,
            waited_s=status.waited_s,
            memory_bytes=self._most_memory(),
        )

    def _most_memory(self) -> int | None:
        counting = self._group or self._meter
        return (counting.most_memory() or None) if counting is not None else None


def classify(report: Mapping[str, str], reached: ProgramEnd | None) -> tuple[ProgramEnd, int]:
    """Return how a program ended and its exit code.

    `report` is what the runner wrote, `reached` the limit observed from outside, which wins.
    """
    if reached is not None or report.get("wall") == "1":
        return reached or "wall", KILLED
    if report.get("memory") == "1":
        return "memory", KILLED
    try:
        number = int(report.get("signal", "0"))
        code = 128 + number if number else int(report.get("code", "1"))
    except ValueError:
        # A runner writes numbers; a program that took over its runner writes anything.
        return "lost", KILLED
    if number == signal.SIGXCPU:
        return "cpu", code
    if number == signal.SIGXFSZ or (report.get("is_full") == "1" and code != 0):
        return "files", code
    return ("killed" if number else "exited"), code


def _keep(status: ProgramStatus, kept: bytearray, data: bytes, limit: int) -> None:
    room = limit - len(kept)
    kept += data[:room]
    status.is_cut = status.is_cut or len(data) > room
