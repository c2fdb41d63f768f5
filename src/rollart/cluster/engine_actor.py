"""EngineServer: an engine that many callers elsewhere use at once.

Each caller has a mailbox; its calls bring requests, aborts and the ends of sessions, and take
completions as soon as there are any. What the engine refuses is told to the one who asked. A
session belongs to one caller at a time. A caller that is gone cannot say so: whoever finds out
does, and then nothing is decoded for it any more.

RemoteEngine: an engine elsewhere, as whoever asks it sees it.

Requests that start in one pass of the loop travel in one call, and so do the answers. When the
engine is gone, every request it had is given back with nothing sampled, to go on elsewhere, and
so is every later one: `lose` is told once. One that does not answer in time counts as gone.

An engine in a process elsewhere, made from a config.

It is named as `module:Class` and made from JSON options, so any host can make it. What it loads is
what it needs: while its process starts, an engine fewer serves.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from rollart.cluster.channel import Channel, InOrder, Mailbox
from rollart.cluster.worker_group import Worker, register
from rollart.config.checks import engine_options
from rollart.config.loader import add_import_paths, parse_config
from rollart.errors import ActorDiedError, InvariantError
from rollart.inference.driver import EngineDriver, Pending, RequestError, note_cut, untouched
from rollart.inference.factory import open_engine
from rollart.ports import Array, Handle, OnCut
from rollart.types import Completion, EngineId, Json, Request, TrajectoryId, Version
from rollart.weights.prefetch import open_source
from rollart.weights.store import open_store


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

    def __init__(self, proxy: EngineDriver) -> None:
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
        """Take how it is called, who calls and who is told of its end; `answer_s` is for calls
        that are not requests.
        """
        self.id = id
        self.handle = handle
        self._lose = lose
        self._answer_s = answer_s
        self._is_lost = False
        self._calls: set[asyncio.Future[Any]] = set()
        self._waiting: dict[TrajectoryId, Pending] = {}
        self._cut: dict[TrajectoryId, OnCut] = {}
        self._line: Channel[Request | Ended, EngineAnswer] = Channel(
            handle,
            name=caller,
            hear=self._hear,
            is_listening=lambda: bool(self._waiting),
            lose=self.lost,
        )

    async def generate(self, request: Request, on_cut: OnCut | None = None) -> Completion:
        """Complete one request; cancelling the await aborts it.

        `on_cut` is told its tokens with what the engine answers next, if it answers again.
        """
        if self._is_lost:
            await asyncio.sleep(0)  # whoever asks again and again lets others take note of the loss
            return untouched(request)
        if request.session in self._waiting:
            raise InvariantError(f"session {request.session} asks again before it was answered")
        self._waiting[request.session] = pending = Pending(request)
        self._line.send(request)
        try:
            return await pending.future
        except asyncio.CancelledError:
            note_cut(pending, on_cut, self._cut)
            self._line.send(Ended(session=request.session))
            raise
        finally:
            del self._waiting[request.session]

    def forget(self, session: TrajectoryId) -> None:
        """Drop what is cached for a session that ended."""
        self._line.send(Ended(session=session))

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
        """Go on."""
        await self._call("resume")

    async def evict(self) -> None:
        """Suspend, and give every request back with what it has."""
        await self._call("evict")

    async def stats(self) -> Mapping[str, float]:
        """Return the engine's counters."""
        return await self._call("stats")

    def lost(self, error: Exception) -> None:
        """Give every request back: the engine is gone."""
        if self._is_lost:
            return
        self._is_lost = True
        self._line.close()
        self._cut.clear()
        for call in self._calls:
            call.cancel()
        for pending in self._waiting.values():
            if pending.answer is None:
                pending.settle(untouched(pending.request))
        self._lose(self.id, error)

    def close(self) -> None:
        """Ask nothing more; the engine is not concerned."""
        self._line.close()

    async def _call(self, method: str, *args: object) -> Any:
        """Run a method of the engine, unless that is gone before it answers."""
        if self._is_lost:
            raise ActorDiedError(f"engine {self.id} is gone")
        call = asyncio.ensure_future(self.handle.call(method, *args))
        self._calls.add(call)
        try:
            if not (await asyncio.wait({call}, timeout=self._answer_s))[0]:
                raise ActorDiedError(
                    f"it hangs: {method} was not answered within {self._answer_s:g} s"
                )
            if call.cancelled():
                raise ActorDiedError(f"engine {self.id} is gone")
            return call.result()
        finally:
            self._calls.discard(call)
            call.cancel()

    def _hear(self, answer: EngineAnswer) -> None:
        pending = self._waiting.get(answer.session)
        if pending is None:
            on_cut = self._cut.pop(answer.session, None)
            if on_cut is not None and not isinstance(answer, Refused):
                on_cut(answer.sampled_tokens if isinstance(answer, Cut) else len(answer.tokens))
        elif isinstance(answer, Refused):
            pending.refuse(RequestError(answer.message))
        elif isinstance(answer, Completion) and answer.turn == pending.request.turn:
            pending.settle(answer)


class EngineActor(EngineServer):
    """An engine with its weights, in a process of its own."""

    def __init__(
        self,
        *,
        config: str,
        name: str,
        model: str,
        version: int,
        store: Mapping[str, Json] | None,
        threads: int,
    ) -> None:
        settings = parse_config(config)
        add_import_paths(settings)
        engine = open_engine(
            settings.engine.name,
            options=engine_options(settings),
            model=Path(model),
            version=Version(version),
            threads=threads,
        )
        self._source = None
        if store is not None:
            self._source = open_source(
                open_store(**cast("dict[str, Any]", store)), wait_s=settings.weights.wait_s
            )
        super().__init__(
            EngineDriver(
                engine,
                id=EngineId(name),
                fetch=_refuse if self._source is None else self._source.fetch,
                pulled_s=None if self._source is None else self._source.pulled_s,
                keep_kv=settings.syncing.keep_kv,
            )
        )

    async def close(self) -> None:
        """Serve no more and let go of the weights."""
        await super().close()
        if self._source is not None:
            self._source.close()


def _refuse(version: Version) -> Mapping[str, Array]:
    raise InvariantError(f"an engine without a weight store was told to load version {version}")
