"""What holds an actor: this process, or one of its own behind two pipes; blocking either way.

A body is used by one thread at a time, save `kill`. Errors of the project's tree
come out of it as they are, anything else as an `ActorError` with the traceback from where it
happened. A process that dies fails the exchange it was busy with and all later ones, with its exit
code or signal and its last words.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rollart.errors import RollartError, UserError
from rollart.runtime.codec import CodecError, encode, read_frame, write_pieces
from rollart.runtime.worker import Actor, nearest_error, restore
from rollart.types import Json

PIPE_BYTES = 1 << 20
LAST_LINES = 20


class ActorError(RollartError):
    """An actor raised something outside the project's error tree, or was already closed."""


class ActorDiedError(ActorError, UserError):
    """The process of an actor ended by itself: killed from outside, or out of memory."""


class Body(Protocol):
    """An actor as its lane sees it: blocking."""

    def make(self, options: Mapping[str, Json]) -> None:
        """Make the object."""
        ...

    def call(self, method: str, args: tuple[object, ...]) -> Any:
        """Run a method and return its result."""
        ...

    def close(self) -> None:
        """End in order."""
        ...

    def kill(self) -> None:
        """Be ended; called from another thread."""
        ...


class LocalBody:
    """An actor in this process; its thread cannot be ended by force."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._actor: Actor | None = None

    def make(self, options: Mapping[str, Json]) -> None:
        """Make the object."""
        self._actor = _translated(self._target, "__init__", lambda: Actor(self._target, options))

    def call(self, method: str, args: tuple[object, ...]) -> Any:
        """Run a method and return its result."""
        assert self._actor is not None
        actor = self._actor
        return _translated(self._target, method, lambda: actor.call(method, args))

    def close(self) -> None:
        """Let the object close itself."""
        if self._actor is not None:
            _translated(self._target, "close", self._actor.close)

    def kill(self) -> None:
        """Do nothing."""


class ProcessBody:
    """An actor in a process of its own, made by the first exchange."""

    def __init__(
        self, target: str, *, env: Mapping[str, str], on_output: Callable[[str], None]
    ) -> None:
        self._target = target
        self._on_output = on_output
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._read_fd, its_write_fd = os.pipe()
        its_read_fd, self._write_fd = os.pipe()
        _enlarge(self._read_fd)
        _enlarge(self._write_fd)
        try:
            self._process = _start_worker(its_read_fd, its_write_fd, env=env)
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(its_read_fd)
            os.close(its_write_fd)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def make(self, options: Mapping[str, Json]) -> None:
        """Make the object in the process."""
        self._exchange("__init__", (self._target, options, sys.path))

    def call(self, method: str, args: tuple[object, ...]) -> Any:
        """Run a method there and return its result."""
        return self._exchange(method, (method, args))

    def close(self) -> None:
        """Ask the process to end and wait until it has."""
        try:
            with contextlib.suppress(ActorDiedError):
                self._exchange("close", None)
        finally:
            self._close_pipes()
            self._process.wait()
            self._listener.join(timeout=1.0)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def _exchange(self, method: str, request: object) -> Any:
        pieces = encode(request)
        try:
            write_pieces(self._write_fd, pieces)
            kind, answer = read_frame(self._read_fd)
        except (OSError, EOFError, CodecError) as error:
            raise self._death() from error
        if kind == "result":
            return answer
        raise told_error(self._target, method, answer)

    def _death(self) -> "ActorDiedError":
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(timeout=1.0)
        code = self._process.returncode
        how = f"exited with code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        words = "".join(self._last_lines).rstrip()
        last = f"its last output:\n{words}" if words else "it printed nothing"
        return ActorDiedError(f"the process {self._process.pid} of {self._target} {how}; {last}")

    def _listen(self) -> None:
        output = self._process.stdout
        assert output is not None
        with output:
            while line := output.readline(8192).decode(errors="replace"):
                self._last_lines.append(line)
                # Whatever the receiver does, the pipe must be drained or the worker would stop.
                with contextlib.suppress(Exception):
                    self._on_output(line)

    def _close_pipes(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)


def told_error(target: str, method: str, told: Mapping[str, Any]) -> RollartError:
    """Return the error that an actor's process described."""
    return restore(told) or ActorError(
        f"{target}.{method} raised {told['message']}\n{told['traceback']}"
    )


def _start_worker(
    read_fd: int, write_fd: int, *, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # A group of its own: Ctrl-C on the terminal must not reach a worker that is still starting.
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-u", "-m", "rollart.runtime.worker"),
            *(str(number) for number in (read_fd, write_fd, os.getpid())),
        ],
        env={**os.environ, **env},
        pass_fds=(read_fd, write_fd),
        process_group=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _translated(target: str, method: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (Exception, SystemExit) as error:
        if nearest_error(error) is not None:
            raise
        raise ActorError(
            f"{target}.{method} raised {type(error).__name__}: {error}\n"
            + "".join(traceback.format_exception(error))
        ) from error


def _enlarge(fd: int) -> None:
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # beyond what an unprivileged user may have
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
