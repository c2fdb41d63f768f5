"""The embedded host: actors in this process, or each in one of its own behind two pipes.

Every actor has a lane: one thread that makes it and runs its calls in order, so the event loop is
never blocked and an actor is never entered twice at a time. For an actor in another process the
lane's work is to write the call and wait for the reply; everything else is the same, and no class
can tell where it runs. Arguments belong to the actor until the call is answered. Cancelling an
await drops a call that has not started; one that has runs to its end, unheard.

`close` ends every actor, by force if it must, and reaps every process.

What holds an actor: this process, or one of its own behind two pipes; blocking either way.

A body is used by one thread at a time, save `kill`. Errors of the project's tree
come out of it as they are, anything else as an `ActorError` with the traceback from where it
happened. A process that dies fails the exchange it was busy with and all later ones, with its exit
code or signal and its last words.
"""

import asyncio
import contextlib
import fcntl
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from rollart.cluster.local_worker import Actor, nearest_error, restore
from rollart.errors import ActorDiedError, ActorError, RollartError
from rollart.plugins import LOCAL_WORKER
from rollart.serialization import CodecError, encode, read_frame, write_pieces
from rollart.types import Json

PIPE_BYTES = 1 << 20
LAST_LINES = 20


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
            *(sys.executable, "-P", "-u", "-m", LOCAL_WORKER),
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


def thread_env(threads: int) -> dict[str, str]:
    """Return the environment that holds numeric libraries to so many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(threads)) | {"OMP_WAIT_POLICY": "PASSIVE"}


class Lane:
    """One thread that does what it is given, in order."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        """Queue a job; its result arrives on the running loop."""
        future: Future[Any] = Future()
        self._jobs.put((future, job))
        return asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the thread after the jobs queued so far."""
        self._jobs.put(None)

    def _run(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        # A function of its own, so that arguments and results are not held while waiting.
        item = self._jobs.get()
        if item is None:
            return False
        future, job = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
        return True


class ActorHandle:
    """An actor of the embedded host."""

    def __init__(self, target: str, *, grace_s: float) -> None:
        self._target = target
        self._grace_s = grace_s
        self._lane = Lane(target)
        self._body: Body | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self, body: Callable[[], Body], options: Mapping[str, Json]) -> None:
        """Make the actor in its lane; close it if that fails."""

        def make() -> None:
            self._body = body()
            self._body.make(options)

        try:
            await self._lane.submit(make)
        except BaseException:
            await self.close()
            raise

    async def call(self, method: str, *args: object) -> Any:
        """Run a method of the actor and return its result."""
        if self._ending is not None:
            raise self._closed(method)
        return await self._lane.submit(lambda: self._call(method, args))

    async def close(self) -> None:
        """End the actor: ask it, then SIGKILL; calls not yet started fail."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    def _call(self, method: str, args: tuple[object, ...]) -> Any:
        if self._body is None or self._ending is not None:
            raise self._closed(method)
        return self._body.call(method, args)

    def _closed(self, method: str) -> ActorError:
        return ActorError(f"{self._target}.{method} was called on a closed actor")

    async def _end(self) -> None:
        ended = self._lane.submit(lambda: self._body.close() if self._body else None)
        self._lane.stop()
        await asyncio.wait({ended}, timeout=self._grace_s)
        if not ended.done() and self._body is not None:
            self._body.kill()
            await asyncio.wait({ended}, timeout=self._grace_s)
        if not ended.done():
            raise ActorError(f"{self._target} did not end within {2 * self._grace_s:g} s")
        return ended.result()


class EmbeddedHost:
    """Spawns actors on this machine."""

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        grace_s: float = 5.0,
        on_output: Callable[[str], None] | None = None,
    ) -> None:
        """Take the environment added for processes, the patience of each stage of a close, and
        what receives each line a process prints (this process's standard error if not given).
        """
        self._env = dict(env or {})
        self._grace_s = grace_s
        self._on_output = on_output or _print_line
        self._handles: list[ActorHandle] = []

    async def spawn(
        self,
        target: str,
        options: Mapping[str, Json],
        *,
        own_process: bool = False,
        pool: str = "",
    ) -> ActorHandle:
        """Make the actor `module:Class` with keyword `options` (JSON values), in any pool."""
        del pool  # this machine is the only one there is

        def body() -> Body:
            if own_process:
                return ProcessBody(target, env=self._env, on_output=self._on_output)
            return LocalBody(target)

        handle = ActorHandle(target, grace_s=self._grace_s)
        self._handles.append(handle)
        await handle.start(body, options)
        return handle

    async def close(self) -> None:
        """End all actors; raise the first error met, after all have ended."""
        handles, self._handles = self._handles, []
        results = await asyncio.gather(
            *(handle.close() for handle in handles), return_exceptions=True
        )
        for result in results:
            if result is not None:
                raise result


def _print_line(line: str) -> None:
    sys.stderr.write(line)
