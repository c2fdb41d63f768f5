"""The embedded host: actors in this process, or each in a child process behind two pipes.

Every actor has one thread (`SerialExecutor`), which makes it and runs its calls in order: the event
loop is never blocked, and an actor never runs two calls at a time. For an actor in a child process
the thread writes the call and waits for the reply; a class cannot see where it runs. Arguments
belong to the actor until the call is answered. Cancelling an await drops a call that has not
started; one that has started runs to its end, and its result is dropped.

Errors of the project's tree keep their class, any other error becomes an `ActorError` with the
traceback from where it happened. A process that dies fails the call it was busy with and all later
ones, with its exit code or signal and the last lines it printed. `close` ends every actor, by force
if it must, and reaps every process.
"""

import asyncio
import contextlib
import fcntl
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from rollart.cluster.child_process import ChildProcess, OutputTail
from rollart.cluster.local_worker import Actor, nearest_error, restore
from rollart.errors import ActorDiedError, ActorError, RollartError, printable
from rollart.plugins import LOCAL_WORKER
from rollart.serialization.codec import CodecError
from rollart.serialization.frames import write_pieces
from rollart.serialization.values import encode, read_frame
from rollart.types import Json


class SerialExecutor:
    """Runs jobs one at a time in a daemon thread of its own.

    Unlike `ThreadPoolExecutor(1)` it holds up neither the interpreter's exit nor `stop`, and keeps
    no job's arguments or result while it waits for the next one.

    Example:
        >>> executor = SerialExecutor("engine-0")
        >>> await executor.submit(engine.step)
        >>> executor.stop()

    """

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


_PIPE_BYTES = 1 << 20
_TAIL_BYTES = 8192


class BlockingActor(Protocol):
    """An actor as its thread sees it; only `kill` is called from another one."""

    def make(self, options: Mapping[str, Json]) -> None:
        """Make the object."""
        ...

    def call(self, method: str, args: tuple[object, ...]) -> Any:
        """Run a method and return its result."""
        ...

    def close(self) -> None:
        """End the process after the calls that are under way."""
        ...

    def kill(self) -> None:
        """End by force, if that is possible."""
        ...


class ThreadActor:
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


class ProcessActor:
    """An actor in a child process, made by the first exchange over its pipes."""

    def __init__(
        self, target: str, *, env: Mapping[str, str], on_output: Callable[[str], None]
    ) -> None:
        self._target = target
        self._on_output = on_output
        self._tail = OutputTail(limit_bytes=_TAIL_BYTES)
        self._read_fd, its_write_fd = os.pipe()
        its_read_fd, self._write_fd = os.pipe()
        _enlarge(self._read_fd)
        _enlarge(self._write_fd)
        its_fds = (its_read_fd, its_write_fd)
        try:
            self.process = ChildProcess(
                LOCAL_WORKER, [str(fd) for fd in its_fds], fds=its_fds, env=env
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(its_read_fd)
            os.close(its_write_fd)
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()

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
            self.process.wait()
            self._reader.join(timeout=1.0)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process.is_running:
            self.process.kill()

    def _exchange(self, method: str, request: object) -> Any:
        pieces = encode(request)
        try:
            write_pieces(self._write_fd, pieces)
            kind, answer = read_frame(self._read_fd)
        except (OSError, EOFError, CodecError) as error:
            raise self._death() from error
        if kind == "result":
            return answer
        raise described_error(self._target, method, answer)

    def _death(self) -> ActorDiedError:
        if self.process.wait(timeout_s=1.0) is None:
            if self.process.is_running:
                self.process.kill()
            self.process.wait()
        self._reader.join(timeout=1.0)
        output = self._tail.text
        last = f"its last output:\n{output}" if output else "it printed nothing"
        process = f"the process {self.process.pid} of {self._target}"
        return ActorDiedError(f"{process} {self.process.how_it_ended}; {last}")

    def _read_output(self) -> None:
        with self.process.output as output:
            while line := output.readline(8192):
                self._tail.add(line)
                # The pipe must be drained even if the receiver fails, or the process would block.
                with contextlib.suppress(Exception):
                    self._on_output(line.decode(errors="replace"))

    def _close_pipes(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)


def described_error(target: str, method: str, described: Mapping[str, Any]) -> RollartError:
    """Return the error that an actor's process described."""
    return restore(described) or ActorError(
        f"{target}.{method} raised {described['message']}\n{described['traceback']}"
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
        with contextlib.suppress(OSError):  # more than an unprivileged user may have
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def thread_env(threads: int) -> dict[str, str]:
    """Return the environment that limits numeric libraries to so many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(threads)) | {"OMP_WAIT_POLICY": "PASSIVE"}


class ActorHandle:
    """An actor of the embedded host."""

    def __init__(self, target: str, *, grace_s: float) -> None:
        self._target = target
        self._grace_s = grace_s
        self._thread = SerialExecutor(target)
        self._actor: BlockingActor | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self, create: Callable[[], BlockingActor], options: Mapping[str, Json]) -> None:
        """Make the actor in its thread; close it if that fails."""

        def make() -> None:
            self._actor = create()
            self._actor.make(options)

        try:
            await self._thread.submit(make)
        except BaseException:
            await self.close()
            raise

    @property
    def process(self) -> ChildProcess | None:
        """The process of the actor; None if it runs in this one."""
        return self._actor.process if isinstance(self._actor, ProcessActor) else None

    async def call(self, method: str, *args: object) -> Any:
        """Run a method of the actor and return its result."""
        if self._ending is not None:
            raise self._closed(method)
        return await self._thread.submit(lambda: self._call(method, args))

    async def close(self) -> None:
        """End the actor: ask it, then SIGKILL; calls that have not started fail."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    def _call(self, method: str, args: tuple[object, ...]) -> Any:
        if self._actor is None or self._ending is not None:
            raise self._closed(method)
        return self._actor.call(method, args)

    def _closed(self, method: str) -> ActorError:
        return ActorError(f"{self._target}.{method} was called on a closed actor")

    async def _end(self) -> None:
        ended = self._thread.submit(lambda: self._actor.close() if self._actor else None)
        self._thread.stop()
        await asyncio.wait({ended}, timeout=self._grace_s)
        if not ended.done() and self._actor is not None:
            self._actor.kill()
            await asyncio.wait({ended}, timeout=self._grace_s)
        if not ended.done():
            raise ActorError(f"{self._target} did not end within {2 * self._grace_s:g} s")
        return ended.result()


class EmbeddedHost:
    """Spawns actors on this machine.

    Example:
        >>> host = EmbeddedHost(env=thread_env(2))
        >>> handle = await host.spawn("my_package:Counter", {"start": 3}, own_process=True)
        >>> await handle.call("count")
        4
        >>> await host.close()

    """

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        grace_s: float = 5.0,
        on_output: Callable[[str], None] | None = None,
    ) -> None:
        """Take what processes get in their environment, the seconds for each stage of a close, and
        what receives each line a process prints (by default standard error).
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
        """Make the actor `module:Class` with keyword `options` (JSON values)."""
        del pool  # there is one machine

        def create() -> BlockingActor:
            if own_process:
                return ProcessActor(target, env=self._env, on_output=self._on_output)
            return ThreadActor(target)

        handle = ActorHandle(target, grace_s=self._grace_s)
        self._handles.append(handle)
        await handle.start(create, options)
        return handle

    async def close(self) -> None:
        """End all actors; raise the first error, after all have ended."""
        handles, self._handles = self._handles, []
        results = await asyncio.gather(
            *(handle.close() for handle in handles), return_exceptions=True
        )
        for result in results:
            if result is not None:
                raise result


def _print_line(line: str) -> None:
    sys.stderr.write(printable(line))
