"""EngineServer: an engine that many callers elsewhere use at once.

Each caller has a mailbox; its calls bring requests, aborts and the ends of sessions, and take
completions as soon as there are any. What the engine refuses is told to the one who asked. A
session belongs to one caller at a time. A caller that is gone cannot say so: whoever finds out
does, and then nothing is decoded for it any more.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from rollart.cluster import Worker, register
from rollart.runtime.exchange import InOrder, Mailbox
from rollart.runtime.proxy import LLMProxy, RequestError
from rollart.types import Completion, Request, TrajectoryId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A session needs nothing more: its request, if one runs, is to be aborted."""

    session: TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The engine does not take a request, and why."""

    session: TrajectoryId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What an aborted request had sampled."""

    session: TrajectoryId
    sampled_tokens: int


EngineAnswer = Completion | Refused | Cut
EngineMessage = Request | Ended

_MOST_HELD = 1024
"""Sessions of a caller that are remembered: the end of one that moved on is told elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Caller:
    """What is between the engine and one caller."""

    messages: InOrder[EngineMessage] = field(default_factory=InOrder["EngineMessage"])
    mailbox: Mailbox[EngineAnswer] = field(default_factory=Mailbox["EngineAnswer"])
    running: dict[TrajectoryId, asyncio.Task[None]] = field(
        default_factory=dict["TrajectoryId", "asyncio.Task[None]"]
    )
    held: dict[TrajectoryId, None] = field(default_factory=dict["TrajectoryId", None])
    """Sessions whose prefix the engine may hold, in the order of their last requests."""

    def hold(self, session: TrajectoryId) -> None:
        """Take note that a session asks."""
        self.held.pop(session, None)
        self.held[session] = None
        if len(self.held) > _MOST_HELD:
            del self.held[next(iter(self.held))]


class EngineServer(Worker):
    """Serves one engine's proxy by calls."""

    def __init__(self, proxy: LLMProxy) -> None:
        self._proxy = proxy
        self._callers: dict[str, _Caller] = {}
        self._left: set[str] = set()
        """Callers that are gone; what they sent before may still be on its way."""
        self._driving: asyncio.Task[None] | None = None

    async def start(self) -> Version:
        """Begin to serve; return the version of the weights held."""
        if self._driving is None:
            self._driving = asyncio.create_task(self._proxy.run())
        return self._proxy.version

    async def exchange(
        self, caller: str, number: int, messages: Sequence[EngineMessage]
    ) -> list[EngineAnswer]:
        """Take a caller's requests and ends; return what has been answered since."""
        if caller in self._left:
            raise _gone(caller)
        if caller not in self._callers:
            self._callers[caller] = _Caller()
        between = self._callers[caller]
        for message in between.messages.take(number, messages):
            if isinstance(message, Ended):
                self._end(between, message.session)
            else:
                task = asyncio.create_task(self._complete(message, between.mailbox))
                between.hold(message.session)
                between.running[message.session] = task
                task.add_done_callback(partial(_forget_task, between, message.session))
        return await between.mailbox.collect(number)

    async def leave(self, caller: str) -> None:
        """Drop a caller that is gone, with all it has asked for: nobody hears the answers."""
        self._left.add(caller)
        between = self._callers.pop(caller, None)
        if between is not None:
            for session in {**between.held, **between.running}:
                self._end(between, session)
            between.mailbox.fail(_gone(caller))

    async def wait(self) -> None:
        """Return, or raise, when the engine serves no more: whoever calls learns of its end."""
        assert self._driving is not None
        await asyncio.shield(self._driving)

    async def suspend(self) -> None:
        """Finish the step under way and take no further one."""
        await self._proxy.suspend()

    async def update(self, version: Version) -> Mapping[str, float]:
        """Fetch and load published weights while suspended; return what that took."""
        return await self._proxy.update(version)

    async def resume(self) -> None:
        """Go on."""
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
        for task in [*running, *([self._driving] if self._driving else [])]:
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
        task.exception()  # an engine that broke is told by `wait`


def _gone(caller: str) -> RequestError:
    return RequestError(f"{caller} was found to be gone: it is answered no more")
