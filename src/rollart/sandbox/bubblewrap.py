"""Sandboxes made by bubblewrap: own namespaces, a read-only root, a filter, limits.

Started by root, the runner keeps the rights to change user and no other, and the program becomes a
user that exists nowhere else, another for each sandbox: it cannot touch even the runner. Started
by anyone else, a user namespace maps the caller to an unprivileged user inside; root gets the same
with `as_user`, a user that must be able to read the interpreter.

The bubblewrap sandbox: cells started when asked for, or kept warm before.

A warm cell is a sandbox whose runner has started and imported the usual modules; it takes one
program and is thrown away like any other, so warmth costs no isolation. At most `concurrency`
programs run at once and `warm` cells wait beside them; new ones are started in pauses, when no
program waits for its turn, so that filling up slows nobody.
"""

import asyncio
import contextlib
import json
import os
import shutil
from collections import deque
from collections.abc import Mapping

from rollart.errors import ConfigError, SandboxError
from rollart.sandbox.cell import Cell
from rollart.sandbox.cgroups import ControlGroup, ControlGroups, open_groups
from rollart.sandbox.messages import read_frame
from rollart.sandbox.options import SandboxOptions
from rollart.sandbox.root import GROUP, HOSTS, PASSWD, RUNNER, RUNNER_INSIDE, find_root
from rollart.sandbox.seccomp import build_filter
from rollart.types import Program, ProgramResult

FIRST_UID = 0x40000000
"""Users from here on exist on no host; each living sandbox has one of its own."""
UIDS_PER_OWNER = 256
"""How far apart the users begin that two processes of the host give to their sandboxes."""
NOBODY = 65534
ENTER = (
    'trap "" INT; while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"'
)
"""A shell's way into the control groups before bubblewrap begins.

The runner ignores interrupts, or a program could end it by one: process 1 is safe from its
namespace only where it handles no signal.
"""
MOST_ERROR_BYTES = 4096

_leased: set[int] = set()


class CellBuilder:
    """Starts cells; owns the control groups and the users they are given."""

    def __init__(
        self,
        options: SandboxOptions,
        *,
        as_user: int | None = None,
        with_groups: bool = True,
    ) -> None:
        bubblewrap = shutil.which("bwrap")
        if bubblewrap is None:
            raise ConfigError(
                "sandbox.kind", "bubblewrap", "bwrap is not installed: apt-get install bubblewrap"
            )
        self._bubblewrap = bubblewrap
        self._options = options
        self._as_user = as_user
        # Root mapped to another user would still be root to the files of /proc/sys.
        self._is_root = os.geteuid() == 0 and as_user is None
        self._root = find_root(options.root, options.python)
        self._filter = build_filter()
        self._groups: ControlGroups | None = (
            open_groups(options.cpu_shares) if with_groups else None
        )

    def describe(self) -> Mapping[str, str]:
        """Say what holds the sandboxes here."""
        has_groups = self._groups is not None
        together = "cgroup v1, all processes together"
        alone = "rlimit, each process by itself"
        return {
            "user": "its own, unknown to the host" if self._is_root else "the caller's, mapped",
            "seccomp": "deny list" if self._filter is not None else "none for this processor",
            "memory": together if has_groups else alone,
            "cpu": together if has_groups else alone,
            "processes": together if has_groups else "rlimit, all of this user",
            "priority": "cgroup v1 shares" if has_groups else "nice 19",
            "root": self._options.root or "this machine's /usr and Python",
        }

    async def start(self, *, files_bytes: int, preload: tuple[str, ...] = ()) -> Cell:
        """Start a sandbox and return it once its runner waits for a program.

        A cancelled start is finished first, then ended: bubblewrap killed half-way can leave a
        child that has not yet asked to die with it.
        """
        starting = asyncio.create_task(self._start(files_bytes, preload))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            while not starting.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({starting})
            if starting.exception() is None:
                await self.discard(starting.result())
            raise

    async def discard(self, cell: Cell) -> None:
        """End a cell and take back what it was given."""
        await cell.end()
        self._release(cell.uid)

    def close(self) -> None:
        """Remove the control groups; all cells have ended."""
        if self._groups is not None:
            self._groups.close()

    def _lease(self) -> int:
        uid = FIRST_UID + os.getpid() * UIDS_PER_OWNER
        while uid in _leased:
            uid += 1
        _leased.add(uid)
        return uid

    def _release(self, uid: int | None) -> None:
        _leased.discard(-1 if uid is None else uid)

    async def _start(self, files_bytes: int, preload: tuple[str, ...]) -> Cell:
        uid = self._lease() if self._is_root else None
        group: ControlGroup | None = None
        cell: Cell | None = None
        try:
            group = self._groups.make() if self._groups is not None else None
            process, info = await self._spawn(files_bytes, preload, group)
            pidfd = await self._await_ready(process, info)
            cell = Cell(process, pidfd=pidfd, group=group, uid=uid)
            return cell
        finally:
            if cell is None:
                self._release(uid)
                if group is not None:
                    await group.remove()

    async def _spawn(
        self, files_bytes: int, preload: tuple[str, ...], group: ControlGroup | None
    ) -> tuple[asyncio.subprocess.Process, int]:
        """Start bubblewrap; return its process and where it tells its child's id."""
        info_read, info_write = os.pipe()
        given = [info_write]
        try:
            command = self._command(given, files_bytes=files_bytes)
            command += [self._root.python, "-s", "-S", RUNNER_INSIDE, *preload]
            if self._as_user is not None:
                user = str(self._as_user)
                command = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *command]
            if group is None:
                command = ["nice", "-n", "19", *command]
            entrances = group.entrances if group is not None else ()
            command = ["/bin/sh", "-c", ENTER, "sh", *entrances, "--", *command]
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=given,
                env={"PATH": os.defpath},
                start_new_session=True,
            )
        except BaseException:
            os.close(info_read)
            raise
        finally:
            for fd in given:
                os.close(fd)
        return process, info_read

    async def _await_ready(self, process: asyncio.subprocess.Process, info: int) -> int:
        """Wait for the runner; return a descriptor of process 1, or leave nothing running."""
        seconds = self._options.start_timeout_s
        try:
            async with asyncio.timeout(seconds):
                await _wait_ready(process)
            return _open_first(os.read(info, MOST_ERROR_BYTES))
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"a sandbox did not start within {seconds} s") from None
            raise
        finally:
            os.close(info)

    def _command(self, given: list[int], *, files_bytes: int) -> list[str]:
        """Return bubblewrap's command line; descriptors it names are added to `given`."""
        command = [self._bubblewrap, "--die-with-parent", "--new-session", "--as-pid-1"]
        command += ["--info-fd", str(given[0]), "--hostname", "sandbox", "--clearenv"]
        if self._is_root:
            for name in ("ipc", "pid", "net", "uts", "cgroup"):
                command.append(f"--unshare-{name}")
            command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            command += ["--unshare-all", "--uid", str(NOBODY), "--gid", str(NOBODY)]
        for name, value in self._root.environment().items():
            command += ["--setenv", name, value]
        command += self._root.arguments()
        made_up = ((PASSWD, "passwd"), (GROUP, "group"), (HOSTS, "hosts"))
        for content, path in () if self._root.has_etc else made_up:
            given.append(_pipe_of(content))
            command += ["--perms", "0444", "--file", str(given[-1]), f"/etc/{path}"]
        command += ["--ro-bind", str(RUNNER), RUNNER_INSIDE, "--proc", "/proc"]
        command += ["--perms", "1777", "--size", str(files_bytes), "--tmpfs", "/tmp"]  # noqa: S108
        command += ["--remount-ro", "/", "--chdir", "/"]
        if self._filter is not None:
            given.append(_pipe_of(self._filter))
            command += ["--seccomp", str(given[-1])]
        return command


async def _wait_ready(process: asyncio.subprocess.Process) -> None:
    """Wait until the runner says it is ready; raise what bubblewrap said if it never does."""
    assert process.stdout is not None
    assert process.stderr is not None
    if await read_frame(process.stdout) != (b"r", b""):
        said = (await process.stderr.read(MOST_ERROR_BYTES)).decode(errors="replace").strip()
        raise SandboxError(f"a sandbox did not start: {said or 'bubblewrap said nothing'}")


def _pipe_of(content: bytes) -> int:
    """Return a descriptor that gives `content`, which a pipe holds whole, and then ends."""
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return read


def _open_first(info: bytes) -> int:
    """Return a descriptor of a sandbox's process 1, from what bubblewrap told."""
    return os.pidfd_open(json.loads(info)["child-pid"])


class BubblewrapSandbox:
    """Runs each program in a bubblewrap sandbox of its own."""

    def __init__(self, options: SandboxOptions, builder: CellBuilder | None = None) -> None:
        self.limits = options.limits
        self._options = options
        self._builder = builder or CellBuilder(options)
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
