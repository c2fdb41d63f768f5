"""The bubblewrap sandbox: cells started when asked for, or kept warm before.

A warm cell is a sandbox whose runner has started and imported the usual modules; it takes one
program and is thrown away like any other, so warmth costs no isolation. At most `concurrency`
programs run at once and `warm` cells wait beside them; new ones are started in pauses, when no
program waits for its turn, so that filling up slows nobody.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping

from rollart.errors import SandboxError
from rollart.sandbox.bubblewrap import Builder
from rollart.sandbox.cell import Cell
from rollart.sandbox.options import SandboxOptions
from rollart.types import Program, ProgramResult


class BubblewrapSandbox:
    """Runs each program in a bubblewrap sandbox of its own."""

    def __init__(self, options: SandboxOptions, builder: Builder | None = None) -> None:
        self.limits = options.limits
        self._options = options
        self._builder = builder or Builder(options)
        self._seats = asyncio.Semaphore(options.concurrency)
        self._warm: deque[asyncio.Task[Cell]] = deque()
        self._running: set[Cell] = set()
        self._waiting = 0
        self._is_closed = False

    def describe(self) -> Mapping[str, str]:
        """Say what holds programs here, limit by limit."""
        return self._builder.describe()

    async def warm_up(self) -> None:
        """Start the warm cells and wait until they are ready."""
        self._refill()
        if self._warm:
            await asyncio.wait(self._warm)

    async def run(self, program: Program) -> ProgramResult:
        """Run a program to its end or its limits; cancelling the await kills it."""
        self._waiting += 1
        try:
            await self._seats.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._run(program)
        finally:
            self._seats.release()
            if self._waiting == 0:
                self._refill()

    async def close(self) -> None:
        """Kill what runs and remove what was made."""
        self._is_closed = True
        for task in self._warm:
            task.cancel()
        while self._warm:
            with contextlib.suppress(asyncio.CancelledError, SandboxError):
                await self._builder.discard(await self._warm.popleft())
        for cell in self._running:
            cell.kill()
        for _ in range(self._options.concurrency):
            await self._seats.acquire()
        self._builder.close()
        for _ in range(self._options.concurrency):
            self._seats.release()

    async def _run(self, program: Program) -> ProgramResult:
        self._refuse_closed()
        called_at = asyncio.get_running_loop().time()
        cell = await self._take(program.limits.files_bytes)
        self._running.add(cell)
        try:
            self._refuse_closed()
            return await cell.run(program, called_at=called_at)
        finally:
            try:
                await self._builder.discard(cell)
            finally:
                self._running.discard(cell)

    async def _take(self, files_bytes: int) -> Cell:
        """Return a cell: a warm one if it fits, else a new one."""
        while self._warm and files_bytes == self.limits.files_bytes:
            try:
                cell = await self._warm.popleft()
            except (SandboxError, OSError):
                # Nobody waited for that start; this program may be luckier.
                continue
            if cell.is_alive:
                return cell
            await self._builder.discard(cell)
        return await self._builder.start(files_bytes=files_bytes)

    def _refill(self) -> None:
        while len(self._warm) < self._options.warm and not self._is_closed:
            start = self._builder.start(
                files_bytes=self.limits.files_bytes, preload=self._options.preload
            )
            self._warm.append(asyncio.create_task(start))

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise SandboxError("the sandbox is closed")
