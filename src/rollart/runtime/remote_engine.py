"""RemoteEngine: an engine elsewhere, as whoever asks it sees it.

Requests that start in one pass of the loop travel in one call, and so do the answers. When the
engine is gone, every request it had is given back with nothing sampled, to go on elsewhere, and
so is every later one: `lose` is told once. One that does not answer in time counts as gone.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from rollart.errors import InvariantError
from rollart.ports import Handle, OnCut
from rollart.runtime.bodies import ActorDiedError
from rollart.runtime.engine_server import Cut, Ended, EngineAnswer, Refused
from rollart.runtime.exchange import Line
from rollart.runtime.proxy import Pending, RequestError, note_cut, untouched
from rollart.types import Completion, EngineId, Request, TrajectoryId, Version


class RemoteEngine:
    """Forwards requests to an EngineServer; suspends, updates and resumes it."""

    def __init__(
        self,
        handle: Handle,
        *,
        id: EngineId,  # noqa: A002
        caller: str,
        lose: Callable[[EngineId, Exception], None],
        patience_s: float | None = None,
    ) -> None:
        """Take how it is called, who calls and who is told of its end; `patience_s` is for calls
        that are not requests.
        """
        self.id = id
        self.handle = handle
        self._lose = lose
        self._patience_s = patience_s
        self._is_lost = False
        self._calls: set[asyncio.Future[Any]] = set()
        self._waiting: dict[TrajectoryId, Pending] = {}
        self._cut: dict[TrajectoryId, OnCut] = {}
        self._line: Line[Request | Ended, EngineAnswer] = Line(
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
            if not (await asyncio.wait({call}, timeout=self._patience_s))[0]:
                raise ActorDiedError(
                    f"it hangs: {method} was not answered within {self._patience_s:g} s"
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
