"""The host's side of an attack: what there is to reach, and whether it was reached.

The trap provides a secret (a file that any user of the host may read, an environment variable),
listens on a port and on two Unix sockets, and keeps a process that could be killed. No permissions
protect any of it: only a sandbox stands between an attack and these.
"""

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from rollart.types import ProgramLimits, ProgramResult
from studies.attacks.attack import MARK, Target

VARIABLE = "ROLLART_TRAP_TOKEN"
ENDING_S = 5.0
"""Seconds past its wall limit that killing a program and noticing its end may take.

Much longer than on a quiet machine, because a dying program has only a sandbox's small CPU share.
"""


class Trap:
    """A secret and listeners that notice an attack; used with `async with`."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        self.connections = 0
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._servers: list[asyncio.Server] = []
        self._bystander: asyncio.subprocess.Process | None = None
        self._target: Target | None = None
        self._before: set[int] = set()

    async def __aenter__(self) -> Self:
        folder = Path(self._folder.name)
        folder.chmod(0o777)
        secret_file = folder / "secret.txt"
        secret_file.write_text(self.secret)
        secret_file.chmod(0o666)
        os.environ[VARIABLE] = self.secret
        self._before = contained_processes()
        abstract = f"rollart-trap-{secrets.token_hex(4)}"
        listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        hidden = socket.socket(socket.AF_UNIX)
        hidden.bind(f"\0{abstract}")
        path = str(folder / "socket")
        self._servers = [
            listener,
            await asyncio.start_unix_server(self._connected, sock=hidden),
            await asyncio.start_unix_server(self._connected, path=path),
        ]
        Path(path).chmod(0o777)
        self._bystander = await asyncio.create_subprocess_exec("sleep", "100000")
        self._target = Target(
            secret_file=str(secret_file),
            variable=VARIABLE,
            port=listener.sockets[0].getsockname()[1],
            abstract=abstract,
            unix_path=path,
            pid=self._bystander.pid,
            folder=str(folder),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.close()
        assert self._bystander is not None
        with contextlib.suppress(ProcessLookupError):
            self._bystander.kill()
        await self._bystander.wait()
        os.environ.pop(VARIABLE, None)
        self._folder.cleanup()

    @property
    def target(self) -> Target:
        """What an attack knows about the host."""
        assert self._target is not None
        return self._target

    def findings(self, result: ProgramResult, limits: ProgramLimits) -> list[str]:
        """Return what a program reached, judged by its output, its time and the host."""
        output = result.stdout + result.stderr
        found: list[str] = []
        if MARK in output:
            start = output.index(MARK)
            found.append(output[start : start + 120].decode(errors="replace"))
        if self.secret.encode() in output:
            found.append("read the secret")
        if result.wall_s > limits.wall_s + ENDING_S:
            found.append(f"ran {result.wall_s:.1f} s, more than wall_s = {limits.wall_s:g}")
        return found + self.host_findings()

    def host_findings(self) -> list[str]:
        """Return what can be seen on the host: connections, new files, a killed process."""
        found: list[str] = []
        if self.connections:
            found.append(f"{self.connections} connections arrived")
        if self._bystander is None or self._bystander.returncode is not None:
            found.append("killed a process of the host")
        folder = Path(self._folder.name)
        if sorted(path.name for path in folder.iterdir()) != ["secret.txt", "socket"]:
            found.append("wrote to the host")
        if (folder / "secret.txt").read_text() != self.secret:
            found.append("changed the secret")
        return found

    def left_processes(self) -> set[int]:
        """Return the processes in other namespaces that did not exist before."""
        return contained_processes() - self._before

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


def contained_processes() -> set[int]:
    """Return the processes in another process namespace that this one started, and orphans.

    Those with another living owner are left out: other runs may have sandboxes on this machine.
    """
    own = _namespace(os.getpid())
    line = {os.getpid(), *_ancestors(os.getpid())}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _namespace(int(entry.name)) not in (own, None):
            ancestors = _ancestors(int(entry.name))
            owners = [pid for pid in ancestors if _namespace(pid) == own]
            strangers = itertools.takewhile(lambda pid: pid not in line, owners)
            is_own = os.getpid() in owners or all(_command(pid) == "bwrap" for pid in strangers)
            if ancestors and is_own:
                found.add(int(entry.name))
    return found


def _namespace(pid: int) -> str | None:
    """Return the process namespace of a process; None if it has ended."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    return None


def _ancestors(pid: int) -> list[int]:
    """Return a process's parent, its parent's, and so on; nothing if it has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError, IndexError):
        while pid:
            # The name, in parentheses, may have spaces in it.
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if not found and stat[0] == "Z":
                break
            pid = int(stat[1])
            found.append(pid)
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "bwrap"  # it has just ended
