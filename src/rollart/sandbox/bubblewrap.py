"""Bubblewrap sandboxes: own namespaces, a read-only root, a system call filter and limits.

Started by root, the runner keeps only the right to change user, and each program runs under a user
id that no other process has, so it cannot touch even the runner. Started by another user, a user
namespace maps the caller to an unprivileged user; root gets the same with `as_user`, a user that
must be able to read the interpreter.

At most `concurrency` programs run at once. Beside them wait `warm` sandboxes whose runner has
already imported the usual modules. A warm sandbox also runs one program and is then deleted, so
warmth costs no isolation. New ones start only while no program waits, so they delay no program.
"""

import asyncio
import contextlib
import json
import os
import shutil
from collections import deque
from collections.abc import Mapping

from rollart.errors import ConfigError, SandboxError
from rollart.ports import Talk
from rollart.sandbox.cgroups import ControlGroup, ControlGroups, GroupVersion, open_groups
from rollart.sandbox.messages import read_frame
from rollart.sandbox.options import SandboxOptions
from rollart.sandbox.process import SandboxProcess
from rollart.sandbox.root import GROUP, HOSTS, PASSWD, RUNNER, RUNNER_INSIDE, find_root
from rollart.sandbox.runner import NICER
from rollart.sandbox.seccomp import build_filter, build_single_filter
from rollart.types import Program, ProgramResult

FIRST_UID = 0x40000000
"""First user id that no host uses; each running sandbox has its own."""
UIDS_PER_OWNER = 256
"""User ids reserved for each process that starts sandboxes, so that two never share one."""
NOBODY = 65534
ENTER = (
    'trap "" INT; while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"'
)
"""Shell script that enters the control groups, then executes bubblewrap.

It ignores SIGINT, and the runner inherits that: the kernel protects process 1 of a namespace only
from signals it does not handle, and Python handles SIGINT, so a program could kill the runner.
"""
START_TIMEOUT_S = 30.0
"""A sandbox starts in milliseconds, with large packages to import in seconds, also when all cores
are busy: one that needs longer never starts."""
MOST_ERROR_BYTES = 4096
CLOSE_PAUSE_S = 0.005
LEAST_PRIORITY = 19

_leased: set[int] = set()


class SandboxLauncher:
    """Starts sandbox processes; owns their control groups and user ids."""

    def __init__(
        self,
        options: SandboxOptions,
        *,
        as_user: int | None = None,
        groups: GroupVersion = "any",
        has_meter: bool = False,
    ) -> None:
        """Check that bubblewrap is here and that memory can be bounded, and make groups.

        `groups`: which control groups may be used. `has_meter`: without groups that limit, measure
        the memory of each sandbox by one that does not.
        """
        bubblewrap = shutil.which("bwrap")
        if bubblewrap is None:
            raise ConfigError(
                "sandbox.kind", "bubblewrap", "bwrap is not installed: apt-get install bubblewrap"
            )
        self._bubblewrap = bubblewrap
        self._options = options
        self._as_user = as_user
        # Root mapped to another user could still write the files of /proc/sys as root.
        self._is_root = os.geteuid() == 0 and as_user is None
        self._root = find_root(options.root, options.python)
        self._filter = build_filter()
        self._groups: ControlGroups | None = open_groups(options.cpu_shares, groups)
        self._single_filter = b""
        if self._groups is None and not options.allow_unbounded_memory:
            self._single_filter = build_single_filter() or b""
            if not self._single_filter:
                fix = "memory cannot be bounded here: there are no control groups to write, and no "
                fix += "filter for this processor; set it to true to accept that"
                raise ConfigError("sandbox.allow_unbounded_memory", False, fix)
        self._meters = open_groups(1024) if has_meter and self._groups is None else None

    def describe(self) -> Mapping[str, str]:
        """Return which mechanism enforces each limit on this machine."""
        alone = "rlimit, each process by itself"
        memory, processes, priority = alone, "rlimit, all of this user", "nice 19"
        if self._groups is not None:
            alone = memory = processes = f"cgroup {self._groups.version}, all processes together"
            if self._groups.has_cpu:
                priority = f"cgroup {self._groups.version} shares"
        elif self._single_filter:
            alone = "rlimit of the one process"
            memory = "rlimit of the one process; its files and page tables by a watch"
            processes = "one; threads by an rlimit"
        return {
            "user": "its own, unknown to the host" if self._is_root else "the caller's, mapped",
            "seccomp": "deny list" if self._filter is not None else "none for this processor",
            "memory": memory,
            "cpu": alone,
            "processes": processes,
            "priority": priority,
            "root": self._options.root or "this machine's /usr and Python",
        }

    async def start(self, *, files_bytes: int, preload: tuple[str, ...] = ()) -> SandboxProcess:
        """Start a sandbox and return it once its runner waits for a program.

        When cancelled, finish the start and then end the sandbox: killed half-way, bubblewrap can
        leave a child that has not yet asked the kernel to die with its parent.
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

    async def discard(self, sandbox: SandboxProcess) -> None:
        """End a sandbox and free its user id."""
        await sandbox.end()
        self._release(sandbox.uid)

    def close(self) -> None:
        """Remove the control groups; all sandboxes have ended."""
        for groups in filter(None, (self._groups, self._meters)):
            groups.close()

    def _lease(self) -> int:
        uid = FIRST_UID + os.getpid() * UIDS_PER_OWNER
        while uid in _leased:
            uid += 1
        _leased.add(uid)
        return uid

    def _release(self, uid: int | None) -> None:
        _leased.discard(-1 if uid is None else uid)

    async def _start(self, files_bytes: int, preload: tuple[str, ...]) -> SandboxProcess:
        uid = self._lease() if self._is_root else None
        group: ControlGroup | None = None
        meter: ControlGroup | None = None
        sandbox: SandboxProcess | None = None
        try:
            group = self._groups.make() if self._groups is not None else None
            meter = self._meters.make() if self._meters is not None else None
            process, info = await self._spawn(files_bytes, preload, group or meter)
            pid = await self._await_ready(process, info)
            sandbox = SandboxProcess(
                process,
                pid=pid,
                group=group,
                uid=uid,
                single_filter=self._single_filter,
                meter=meter,
            )
            return sandbox
        finally:
            if sandbox is None:
                self._release(uid)
                for each in filter(None, (group, meter)):
                    await each.remove()

    async def _spawn(
        self, files_bytes: int, preload: tuple[str, ...], group: ControlGroup | None
    ) -> tuple[asyncio.subprocess.Process, int]:
        """Start bubblewrap; return its process and the descriptor it reports its child's id on."""
        info_read, info_write = os.pipe()
        given = [info_write]
        try:
            command = self._command(given, files_bytes=files_bytes)
            if self._single_filter:
                preload = (*preload, "ctypes")
            command += [self._root.python, "-s", "-S", RUNNER_INSIDE, *preload]
            if self._as_user is not None:
                user = str(self._as_user)
                command = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *command]
            if self._groups is None or not self._groups.has_cpu:
                nice = LEAST_PRIORITY - (NICER if self._single_filter else 0)
                command = ["nice", "-n", str(nice), *command]
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
        """Wait for the runner and return the id of process 1; on failure kill bubblewrap."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await _wait_ready(process)
            return int(json.loads(os.read(info, MOST_ERROR_BYTES))["child-pid"])
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise SandboxError(
                    f"a sandbox did not start within {START_TIMEOUT_S:g} s"
                ) from None
            raise
        finally:
            os.close(info)

    def _command(self, given: list[int], *, files_bytes: int) -> list[str]:
        """Return bubblewrap's command line; append the descriptors it names to `given`."""
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
    """Wait until the runner is ready; raise bubblewrap's error output if it exits first."""
    assert process.stdout is not None
    assert process.stderr is not None
    if await read_frame(process.stdout) != (b"r", b""):
        said = (await process.stderr.read(MOST_ERROR_BYTES)).decode(errors="replace").strip()
        raise SandboxError(f"a sandbox did not start: {said or 'bubblewrap gave no reason'}")


def _pipe_of(content: bytes) -> int:
    """Return the read end of a pipe filled with `content`, which must fit the pipe's buffer."""
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return read


class BubblewrapSandbox:
    """Runs each program in a bubblewrap sandbox of its own."""

    def __init__(self, options: SandboxOptions, launcher: SandboxLauncher | None = None) -> None:
        self.limits = options.limits
        self._options = options
        self._launcher = launcher or SandboxLauncher(options)
        self._slots = asyncio.Semaphore(options.concurrency)
        self._warm: deque[asyncio.Task[SandboxProcess]] = deque()
        self._running: set[SandboxProcess] = set()
        self._waiting = 0
        self._is_closed = False

    def describe(self) -> Mapping[str, str]:
        """Return which mechanism enforces each limit."""
        return self._launcher.describe()

    async def warm_up(self) -> None:
        """Start the warm sandboxes and wait until they are ready."""
        self._refill()
        if self._warm:
            await asyncio.wait(self._warm)

    async def run(
        self, program: Program, *, talk: Talk | None = None, is_trusted: bool = False
    ) -> ProgramResult:
        """Run a program until it ends or reaches a limit; cancelling the await kills it."""
        if is_trusted:
            return await self._run(program, talk, is_trusted=True)
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._run(program, talk)
        finally:
            self._slots.release()
            if self._waiting == 0:
                self._refill()

    async def close(self) -> None:
        """Kill running programs and remove the control groups."""
        self._is_closed = True
        for task in self._warm:
            task.cancel()
        while self._warm:
            with contextlib.suppress(asyncio.CancelledError, SandboxError):
                await self._launcher.discard(await self._warm.popleft())
        for sandbox in self._running:
            sandbox.discard()
        # Holding every slot means that no run is left; only then can the groups be removed.
        for _ in range(self._options.concurrency):
            await self._slots.acquire()
        # Trusted programs hold no slot.
        while self._running:
            await asyncio.sleep(CLOSE_PAUSE_S)
        self._launcher.close()
        for _ in range(self._options.concurrency):
            self._slots.release()

    async def _run(
        self, program: Program, talk: Talk | None, *, is_trusted: bool = False
    ) -> ProgramResult:
        self._refuse_closed()
        called_at = asyncio.get_running_loop().time()
        sandbox = await self._take(program.limits.files_bytes)
        self._running.add(sandbox)
        try:
            self._refuse_closed()
            return await sandbox.run(program, called_at=called_at, talk=talk, is_trusted=is_trusted)
        finally:
            try:
                await self._launcher.discard(sandbox)
            finally:
                self._running.discard(sandbox)

    async def _take(self, files_bytes: int) -> SandboxProcess:
        """Return a warm sandbox if its file limit matches, else start a new one."""
        while self._warm and files_bytes == self.limits.files_bytes:
            try:
                sandbox = await self._warm.popleft()
            except (SandboxError, OSError):
                # That start failed in the background; a new start may still succeed.
                continue
            if sandbox.is_alive:
                return sandbox
            await self._launcher.discard(sandbox)
        return await self._launcher.start(files_bytes=files_bytes)

    def _refill(self) -> None:
        while len(self._warm) < self._options.warm and not self._is_closed:
            start = self._launcher.start(
                files_bytes=self.limits.files_bytes, preload=self._options.preload
            )
            self._warm.append(asyncio.create_task(start))

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise SandboxError("the sandbox is closed")
