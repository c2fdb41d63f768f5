"""The embedded host: actors in this process, or each in one of its own behind two pipes.

Every actor has a lane: one thread that makes it and runs its calls in order, so the event loop is
never blocked and an actor is never entered twice at a time. For an actor in another process the
lane's work is to write the call and wait for the reply; everything else is the same, and no class
can tell where it runs. Arguments belong to the actor until the call is answered. Cancelling an
await drops a call that has not started; one that has runs to its end, unheard.

`close` ends every actor, by force if it must, and reaps every process.
"""

import asyncio
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from rollart.runtime.bodies import ActorDiedError, ActorError, Body, LocalBody, ProcessBody
from rollart.types import Json

__all__ = ["ActorDiedError", "ActorError", "ActorHandle", "EmbeddedHost", "thread_env"]


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
