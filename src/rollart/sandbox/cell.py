"""One started sandbox: takes one program, tells what became of it, and is gone.

Limits are held from outside: wall time by a timer, processor time and memory by the control
group's counters. To kill a cell is to kill its process 1: the kernel takes the rest of its
namespace with it, bubblewrap collects it, and only then is the cell ended, so none is left behind.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from rollart.errors import SandboxError
from rollart.sandbox.cgroups import ControlGroup, CpuUsage
from rollart.sandbox.messages import Setting, decode_words, encode, read_frame
from rollart.types import Program, ProgramEnd, ProgramLimits, ProgramResult

LEAST_LOOK_S = 0.02
"""How soon after a look at the processor time the next one may come."""
KILLED = 128 + signal.SIGKILL


@dataclass(slots=True, kw_only=True)
class ProgramStatus:
    """What is known of a program while it runs."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    started_at: float | None = None
    told: Mapping[str, str] | None = None
    """What the runner said at the end."""
    reached: ProgramEnd | None = None
    """The limit it was killed for."""
    is_cut: bool = False
    before: CpuUsage | None = None
    """What the group had had when the program began."""
    waited_s: float | None = None
    """How long it was kept from a processor, if it met its wall limit."""


class Cell:
    """A sandbox whose runner waits for its program."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        *,
        pidfd: int,
        group: ControlGroup | None,
        uid: int | None,
    ) -> None:
        self.uid = uid
        self._process = process
        self._pidfd = pidfd
        self._group = group
        self._is_ended = False

    @property
    def is_alive(self) -> bool:
        """Whether its runner still waits."""
        return self._process.returncode is None

    async def run(self, program: Program, *, called_at: float) -> ProgramResult:
        """Run a program; the cell is ended afterwards, whatever happens."""
        try:
            outcome = ProgramStatus()
            limits = program.limits
            if self._group is not None:
                self._group.limit(memory_bytes=limits.memory_bytes, processes=limits.processes)
            message = encode(program, self._setting(limits))
            with self._watch_memory(outcome):
                async with asyncio.TaskGroup() as tasks:
                    feeding = tasks.create_task(self._feed(message))
                    watching = tasks.create_task(self._watch_cpu(limits, outcome))
                    await self._follow(limits, outcome)
                    feeding.cancel()
                    watching.cancel()
            return self._conclude(outcome, limits, called_at)
        finally:
            await self.end()

    def kill(self, reason: ProgramEnd | None = None, outcome: ProgramStatus | None = None) -> None:
        """Kill everything inside; the first reason counts."""
        if outcome is not None and outcome.reached is None:
            outcome.reached = reason
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def end(self) -> None:
        """Kill what is left, wait until it is gone and remove its group."""
        if not self._is_ended:
            self.kill()
            await self._process.wait()
        if self._is_ended:
            return
        self._is_ended = True
        os.close(self._pidfd)
        if self._group is not None:
            await self._group.remove()

    def _setting(self, limits: ProgramLimits) -> Setting:
        rlimits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": int(limits.cpu_s) + 1,
            "RLIMIT_FSIZE": limits.files_bytes,
            "RLIMIT_NOFILE": 1024,
        }
        if self._group is None:
            rlimits["RLIMIT_AS"] = limits.memory_bytes
            rlimits["RLIMIT_NPROC"] = limits.processes + 2
        return Setting(rlimits=rlimits, uid=self.uid)

    async def _feed(self, message: bytes) -> None:
        """Give the runner its program; a runner that died first is seen elsewhere."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(message)
            await self._process.stdin.drain()

    async def _follow(self, limits: ProgramLimits, outcome: ProgramStatus) -> None:
        """Take what the runner tells until it has ended or the wall limit is reached."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        assert self._process.stdout is not None
        try:
            while (frame := await read_frame(self._process.stdout)) is not None:
                match frame:
                    case b"s", _ if timer is None:
                        outcome.started_at = loop.time()
                        outcome.before = self._group.usage() if self._group else None
                        timer = loop.call_later(limits.wall_s, self._stop, outcome)
                    case b"o", data:
                        _keep(outcome, outcome.stdout, data, limits.output_bytes)
                    case b"e", data:
                        _keep(outcome, outcome.stderr, data, limits.output_bytes)
                    case b"c", _:
                        outcome.is_cut = True
                    case b"x", data:
                        outcome.told = decode_words(data)
                        return
                    case _:
                        pass
        finally:
            if timer is not None:
                timer.cancel()

    def _stop(self, outcome: ProgramStatus) -> None:
        """Kill the cell at its wall limit, and note whether it could run at all until then."""
        if self._group is not None and outcome.before is not None:
            outcome.waited_s = self._group.usage().waited_since(outcome.before)
        self.kill("wall", outcome)

    async def _watch_cpu(self, limits: ProgramLimits, outcome: ProgramStatus) -> None:
        """Kill the cell when its processes have used their processor time together."""
        if self._group is None:
            return
        before = self._group.cpu_s()
        while (left := limits.cpu_s - (self._group.cpu_s() - before)) > 0:
            soonest = left / (os.cpu_count() or 1)
            await asyncio.sleep(max(soonest, LEAST_LOOK_S))
        self.kill("cpu", outcome)

    @contextlib.contextmanager
    def _watch_memory(self, outcome: ProgramStatus) -> Generator[None]:
        """Kill the cell when the kernel says that its memory ran out."""
        if self._group is None:
            yield
            return
        loop = asyncio.get_running_loop()
        event = self._group.watch_memory()
        loop.add_reader(event, self.kill, "memory", outcome)
        try:
            yield
        finally:
            loop.remove_reader(event)
            os.close(event)

    def _conclude(
        self, outcome: ProgramStatus, limits: ProgramLimits, called_at: float
    ) -> ProgramResult:
        told = outcome.told or {}
        if outcome.reached is None and self._group is not None and self._group.memory_kills():
            outcome.reached = "memory"
        if outcome.reached is None and outcome.told is None:
            raise SandboxError("the sandbox was lost before its program ended")
        end, exit_code = classify(told, outcome.reached)
        started_at = outcome.started_at or called_at
        before = outcome.before
        return ProgramResult(
            end=end,
            exit_code=exit_code,
            stdout=bytes(outcome.stdout),
            stderr=bytes(outcome.stderr),
            is_cut=outcome.is_cut,
            wall_s=asyncio.get_running_loop().time() - started_at,
            start_s=started_at - called_at,
            cpu_s=self._group.cpu_s() - before.cpu_s if self._group and before else None,
            waited_s=outcome.waited_s,
        )


def classify(told: Mapping[str, str], reached: ProgramEnd | None) -> tuple[ProgramEnd, int]:
    """Return how a program ended and its exit code, from what was told and what was seen."""
    if reached is not None or told.get("wall") == "1":
        return reached or "wall", KILLED
    number = int(told.get("signal", "0"))
    code = 128 + number if number else int(told.get("code", "1"))
    if number == signal.SIGXCPU:
        return "cpu", code
    if number == signal.SIGXFSZ or (told.get("is_full") == "1" and code != 0):
        return "files", code
    return ("killed" if number else "exited"), code


def _keep(outcome: ProgramStatus, kept: bytearray, data: bytes, limit: int) -> None:
    room = limit - len(kept)
    kept += data[:room]
    outcome.is_cut = outcome.is_cut or len(data) > room
