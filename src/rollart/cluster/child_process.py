"""Child processes: Python modules run in processes of their own, which end with this one.

Actors (`cluster.local_host`) and reward instances (`rewards.invoke.pool`) both start here. A child
leads a session of its own: Ctrl-C on the terminal does not reach it, and one signal kills it with
all it started. It does not outlive its parent: an idle child sees the end of its pipe or socket, a
busy one is killed by the kernel. What it prints goes through one pipe, which the parent must drain;
the end of it is kept for the message about a crash.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

_PR_SET_PDEATHSIG = 1


class OutputTail:
    """Keeps the last bytes of what a process prints.

    Example:
        >>> tail = OutputTail(limit_bytes=5)
        >>> tail.add(b"out of memory")
        >>> tail.text
        'emory'

    """

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept = b""

    def add(self, data: bytes) -> None:
        """Take some output."""
        self._kept = (self._kept + data[-self._limit_bytes :])[-self._limit_bytes :]

    @property
    def text(self) -> str:
        """What is kept, without blank space around it."""
        return self._kept.decode(errors="replace").strip()


class ChildProcess:
    """A Python module that runs in a process of its own.

    Example:
        >>> child = ChildProcess(LOCAL_WORKER, [str(read_fd)], fds=[read_fd])
        >>> child.kill()
        >>> child.wait(), child.how_it_ended
        (-9, 'was killed by SIGKILL')

    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        fds: Sequence[int],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m module ARGUMENTS… PARENT_PID` with some open file descriptors."""
        self._process = subprocess.Popen(
            # -P: the working directory is the user's, not a place to import from.
            [sys.executable, "-P", "-u", "-m", module, *arguments, str(os.getpid())],
            env={**os.environ, **(env or {})},
            pass_fds=tuple(fds),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        """The pipe with all it prints; its reader closes it."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def is_running(self) -> bool:
        """Whether its end has not been seen yet."""
        return self._process.returncode is None

    def kill(self) -> None:
        """Send SIGKILL to the process and all it started, from any thread.

        After its end was seen, only to end what it started, and soon: ids are used again.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for its end; return its exit code, or None if it still runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    @property
    def how_it_ended(self) -> str:
        """Its signal or exit code, once `wait` has seen its end."""
        code = self._process.returncode
        if code is None:
            return "is still running"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"


def prepare_child(
    parent_pid: int, *, ignored: Sequence[signal.Signals], fds: Sequence[int]
) -> None:
    """Prepare this process, started as a ChildProcess: ignore signals and end with the parent.

    `fds` are not passed on to what it starts, which would keep pipes open after its end.
    """
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the kernel was asked
        sys.exit("the parent of this process has ended")
    for fd in fds:
        os.set_inheritable(fd, False)
