"""EngineClient: sends the requests of one process to engines, and moves them when one goes away.

It owns the process's router and the engines it may ask. An engine that gives a request back, or is
lost, is no failure of the attempt: another engine continues the request. It reads what was sampled
so far as part of its prompt (`remainder`), so nothing is sampled twice, and the tokens keep the
log-probs and versions they were drawn with (`join`). While no engine is open, requests wait.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from rollart.control.routing import Router
from rollart.ports import Generator
from rollart.seeds import derive_seed
from rollart.types import Completion, EngineId, Request, TrajectoryId


class EngineClient:
    """Connects episodes with engines."""

    def __init__(
        self,
        router: Router,
        *,
        generators: Mapping[EngineId, Generator],
        now: Callable[[], float],
        on_cut: Callable[[TrajectoryId, int], None] | None = None,
    ) -> None:
        """Take the engines there are, open or not, and the time requests are measured by.

        `on_cut` gets how many tokens a turn had sampled that ended with its attempt.
        """
        self.router = router
        self._generators = dict(generators)
        self._now = now
        self._on_cut = on_cut
        self._waiting: list[asyncio.Future[None]] = []

    def add(self, engine: EngineId, generator: Generator) -> None:
        """Learn how to reach an engine; it is asked nothing until it is opened."""
        self._generators[engine] = generator

    def open(self, engine: EngineId, pool: str, *, is_guest: bool = False) -> None:
        """Let an engine take requests."""
        self.router.open(engine, pool, is_guest=is_guest)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def close(self, engine: EngineId) -> None:
        """Send an engine no further request, if it is open."""
        if self.router.is_open(engine):
            self.router.close(engine)

    async def some_open(self) -> None:
        """Wait until an engine takes requests."""
        while not self.router.has_engines:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    async def complete(self, request: Request) -> Completion:
        """Complete a request; if an engine gives it back, another continues its tokens."""
        completion = await self._ask(request)
        while completion.finish == "abort":
            try:
                rest = await self._ask(remainder(request, completion))
            except asyncio.CancelledError:
                loop = asyncio.get_running_loop()
                loop.call_soon(self._note_cut, request.session, len(completion.tokens))
                raise
            completion = join(completion, rest)
        return completion

    def home(self, session: TrajectoryId) -> EngineId:
        """Return the engine that answered a session last."""
        return self.router.home(session)

    def forget(self, session: TrajectoryId) -> None:
        """Release a session that ended, here and where its prefix is held."""
        home = self.router.forget(session)
        if home is not None:
            self._generators[home].forget(session)

    async def _ask(self, request: Request) -> Completion:
        router, now, session = self.router, self._now, request.session
        await self.some_open()
        engine = router.pick(session, domain=request.domain, now=now(), length=len(request.tokens))
        on_cut = partial(self._note_cut, session)
        completion = await self._generators[engine].generate(request, on_cut)
        if completion.finish == "abort":
            router.cancelled(session)
        else:
            router.done(session, now=now(), sampled=len(completion.tokens))
        return completion

    def _note_cut(self, session: TrajectoryId, tokens: int) -> None:
        if self._on_cut is not None and tokens:
            self._on_cut(session, tokens)


def remainder(request: Request, partial: Completion) -> Request:
    """Return what is still to be asked of a request of which a part was sampled."""
    count = len(partial.tokens)
    if not count:
        return request
    left = request.sampling.max_tokens - count
    assert left > 0
    return replace(
        request,
        tokens=request.tokens + partial.tokens,
        sampling=replace(request.sampling, max_tokens=left),
        seed=derive_seed(request.seed, count),
    )


def join(partial: Completion, rest: Completion) -> Completion:
    """Return a completion that began as `partial` and ended as `rest`."""
    return replace(
        rest,
        tokens=partial.tokens + rest.tokens,
        logprobs=partial.logprobs + rest.logprobs,
        versions=partial.versions + rest.versions,
    )
