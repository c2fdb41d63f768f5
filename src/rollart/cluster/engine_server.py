"""An engine in one process, its callers in others: both sides of what they say to each other.

    RemoteEngine (caller) ── requests, ends of sessions ──► EngineServer (engine's process)
                          ◄── completions, refusals ──────

EngineServer: each caller has a mailbox. A call brings requests and the ends of sessions, and
returns completions as soon as there are any; a request that the engine refuses is answered with the
reason. A session belongs to one caller at a time. A caller that died cannot say so: `leave` is
called for it, after which nothing is decoded for it any more.

RemoteEngine: requests that start in one pass of the event loop travel in one call, and so do their
answers. When the engine is lost, every request is given back with nothing sampled, so that it can
continue on another engine, and `lose` is called once. An engine that does not answer in time counts
as lost.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rollart.cluster.channel import Channel, InOrder, Mailbox
from rollart.cluster.worker_group import Worker, register
from rollart.errors import ActorDiedError, InvariantError
from rollart.inference.driver import EngineDriver, Pending, RequestError, note_cut, untouched
from rollart.ports import Handle, OnCut
from rollart.types import Completion, EngineId, Request, TrajectoryId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """A session is over: its request, if one runs, is to be aborted.

    Example:
        >>> SessionEnded(session=TrajectoryId(17))

    """

    session: TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The engine does not take a request, and why.

    Example:
        >>> Refused(session=TrajectoryId(17), message="prompt of 9000 tokens, at most 4096")

    """

    session: TrajectoryId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How many tokens an aborted request had sampled.

    Example:
        >>> Cut(session=TrajectoryId(17), sampled_tokens=31)

    """

    session: TrajectoryId
    sampled_tokens: int


EngineAnswer = Completion | Refused | Cut
EngineMessage = Request | SessionEnded

_MOST_HELD = 1024
"""Sessions remembered for a caller; the end of one that moved is sent to its new engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Caller:
    """What the engine knows of one caller."""

    messages: InOrder[EngineMessage] = field(default_factory=InOrder["EngineMessage"])
    mailbox: Mailbox[EngineAnswer] = field(default_factory=Mailbox["EngineAnswer"])
    running: dict[TrajectoryId, asyncio.Task[None]] = field(
        default_factory=dict["TrajectoryId", "asyncio.Task[None]"]
    )
    held: dict[TrajectoryId, None] = field(default_factory=dict["TrajectoryId", None])
    """Sessions whose prefix the engine may hold, in the order of their last requests."""

    def hold(self, session: TrajectoryId) -> None:
        """Remember a session that sends a request."""
        self.held.pop(session, None)
        self.held[session] = None
        if len(self.held) > _MOST_HELD:
            del self.held[next(iter(self.held))]


class EngineServer(Worker):
    """Serves one engine to callers in other processes."""

    def __init__(self, proxy: EngineDriver) -> None:
        self._proxy = proxy
        self._callers: dict[str, _Caller] = {}
        self._left: set[str] = set()
        """Callers that were dropped; a call of theirs may still be on its way."""
        self._run_task: asyncio.Task[None] | None = None

    async def start(self) -> Version:
        """Begin to serve; return the version of the weights held."""
        if self._run_task is None:
            self._run_task = asyncio.create_task(self._proxy.run())
        return self._proxy.version

    async def exchange(
        self, caller: str, number: int, messages: Sequence[EngineMessage]
    ) -> list[EngineAnswer]:
        """Take a caller's requests and ended sessions; return the answers since its last call."""
        if caller in self._left:
            raise _dropped(caller)
        if caller not in self._callers:
            self._callers[caller] = _Caller()
        between = self._callers[caller]
        for message in between.messages.take(number, messages):
            if isinstance(message, SessionEnded):
                self._end(between, message.session)
            else:
                task = asyncio.create_task(self._complete(message, between.mailbox))
                between.hold(message.session)
                between.running[message.session] = task
                task.add_done_callback(partial(_forget_task, between, message.session))
        return await between.mailbox.collect(number)

    async def leave(self, caller: str) -> None:
        """Drop a caller that died, with all its requests: nobody waits for the answers."""
        self._left.add(caller)
        between = self._callers.pop(caller, None)
        if between is not None:
            for session in {**between.held, **between.running}:
                self._end(between, session)
            between.mailbox.fail(_dropped(caller))

    async def wait(self) -> None:
        """Return, or raise its error, when the engine stops serving."""
        assert self._run_task is not None
        await asyncio.shield(self._run_task)

    async def suspend(self) -> None:
        """Finish the step under way and take no further one."""
        await self._proxy.suspend()

    async def update(self, version: Version) -> Mapping[str, float]:
        """Fetch and load published weights while suspended; return what that took."""
        return await self._proxy.update(version)

    async def resume(self) -> None:
        """Take steps again."""
        await self._proxy.resume()

    async def evict(self) -> None:
        """Suspend, and give every request back with what it has."""
        await self._proxy.evict()

    @register("all")
    def stats(self) -> dict[str, float]:
        """Return the engine's counters."""
        return dict(self._proxy.stats())

    async def close(self) -> None:
        """Serve no more."""
        running = [task for each in self._callers.values() for task in each.running.values()]
        for task in [*running, *([self._run_task] if self._run_task else [])]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    async def _complete(self, request: Request, mailbox: Mailbox[EngineAnswer]) -> None:
        session = request.session

        def on_cut(tokens: int) -> None:
            mailbox.put(Cut(session=session, sampled_tokens=tokens))

        try:
            mailbox.put(await self._proxy.generate(request, on_cut))
        except RequestError as error:
            mailbox.put(Refused(session=session, message=str(error)))

    def _end(self, between: _Caller, session: TrajectoryId) -> None:
        between.held.pop(session, None)
        task = between.running.get(session)
        if task is not None and not task.done():
            task.cancel()  # aborts and forgets
        else:
            self._proxy.forget(session)


def _forget_task(between: _Caller, session: TrajectoryId, task: "asyncio.Task[None]") -> None:
    if between.running.get(session) is task:
        del between.running[session]
    if not task.cancelled():
        task.exception()  # `wait` raises it


def _dropped(caller: str) -> RequestError:
    return RequestError(f"{caller} was dropped as lost: it gets no further answer")


class RemoteEngine:
    """Forwards requests to an EngineServer; suspends, updates and resumes it."""

    def __init__(
        self,
        handle: Handle,
        *,
        id: EngineId,  # noqa: A002
        caller: str,
        lose: Callable[[EngineId, Exception], None],
        answer_s: float | None = None,
    ) -> None:
        """Take the engine's handle, the caller's name and what learns of the engine's loss.

        `answer_s` limits calls that are not requests.
        """
        self.id = id
        self.handle = handle
        self._lose = lose
        self._answer_s = answer_s
        self._is_lost = False
        self._calls: set[asyncio.Future[Any]] = set()
        self._waiting: dict[TrajectoryId, Pending] = {}
        self._cut: dict[TrajectoryId, OnCut] = {}
        self._channel: Channel[Request | SessionEnded, EngineAnswer] = Channel(
            handle,
            name=caller,
            receive=self._receive,
            is_listening=lambda: bool(self._waiting),
            lose=self.lost,
        )

    async def generate(self, request: Request, on_cut: OnCut | None = None) -> Completion:
        """Complete one request; cancelling the await aborts it.

        `on_cut` gets its number of tokens with the engine's next answer, if there is one.
        """
        if self._is_lost:
            await asyncio.sleep(0)  # a caller that retries at once must let others run
            return untouched(request)
        if request.session in self._waiting:
            raise InvariantError(f"session {request.session} asks again before it was answered")
        self._waiting[request.session] = pending = Pending(request)
        self._channel.send(request)
        try:
            return await pending.future
        except asyncio.CancelledError:
            note_cut(pending, on_cut, self._cut)
            self._channel.send(SessionEnded(session=request.session))
            raise
        finally:
            del self._waiting[request.session]

    def forget(self, session: TrajectoryId) -> None:
        """Drop what is cached for a session that ended."""
        self._channel.send(SessionEnded(session=session))

    async def start(self) -> Version:
        """Begin to serve; return the version of the weights held."""
        return await self._call("start")

    async def suspend(self) -> None:
        """Finish the step under way and take no further one."""
        await self._call("suspend")

    async def update(self, version: Version) -> Mapping[str, float]:
        """Fetch and load published weights while suspended; return what that took."""
        return await self._call("update", version)

    async def resume(self) -> None:
        """Take steps again."""
        await self._call("resume")

    async def evict(self) -> None:
        """Suspend, and give every request back with what it has."""
        await self._call("evict")

    async def stats(self) -> Mapping[str, float]:
        """Return the engine's counters."""
        return await self._call("stats")

    def lost(self, error: Exception) -> None:
        """Give every request back: the engine is lost."""
        if self._is_lost:
            return
        self._is_lost = True
        self._channel.close()
        self._cut.clear()
        for call in self._calls:
            call.cancel()
        for pending in self._waiting.values():
            if pending.answer is None:
                pending.settle(untouched(pending.request))
        self._lose(self.id, error)

    def close(self) -> None:
        """Send nothing more; the engine keeps running."""
        self._channel.close()

    async def _call(self, method: str, *args: object) -> Any:
        """Run a method of the engine; raise ActorDiedError if it is lost before it answers."""
        if self._is_lost:
            raise ActorDiedError(f"engine {self.id} is lost")
        call = asyncio.ensure_future(self.handle.call(method, *args))
        self._calls.add(call)
        try:
            if not (await asyncio.wait({call}, timeout=self._answer_s))[0]:
                raise ActorDiedError(
                    f"it hangs: {method} was not answered within {self._answer_s:g} s"
                )
            if call.cancelled():
                raise ActorDiedError(f"engine {self.id} is lost")
            return call.result()
        finally:
            self._calls.discard(call)
            call.cancel()

    def _receive(self, answer: EngineAnswer) -> None:
        pending = self._waiting.get(answer.session)
        if pending is None:
            on_cut = self._cut.pop(answer.session, None)
            if on_cut is not None and not isinstance(answer, Refused):
                on_cut(answer.sampled_tokens if isinstance(answer, Cut) else len(answer.tokens))
        elif isinstance(answer, Refused):
            pending.refuse(RequestError(answer.message))
        elif isinstance(answer, Completion) and answer.turn == pending.request.turn:
            pending.settle(answer)
