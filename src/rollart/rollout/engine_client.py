"""EngineClient: sends the requests of one process to engines, and moves them when one goes away.

It owns the process's router and the engines it may ask. An engine that gives a request back, or is
lost, is no failure of the attempt: another engine continues the request. It reads what was sampled
so far as part of its prompt (`remainder`), so nothing is sampled twice, and the tokens keep the
log-probs and versions they were drawn with (`join`). While no engine is open, requests wait.

A policy that acts within a fraction of a millisecond is not worth a call for each action: every
process of environments then holds one (`ResidentPolicies`). At the start of an attempt it asks an
engine for the version being served, with a request of one token, and loads that version from the
weight store unless it holds it already. Engines are thus suspended, updated, lost and replaced as
always, and one version plays an attempt from its first action to its last.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from rollart.control.routing import Router
from rollart.ports import Array, Generator
from rollart.seeds import derive_seed
from rollart.training_ports import PolicyRuntime
from rollart.types import Completion, EngineId, Request, ResidentPolicy, TrajectoryId, Version

_KEPT = 2
"""Versions kept loaded: attempts that start while engines change versions ask for two."""


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


class ResidentPolicies:
    """Loads the versions of a policy that the attempts of this process ask for.

    Example:
        >>> policies = ResidentPolicies(
        ...     runtime, model=model, start=model, version=Version(0), fetch=fetch
        ... )
        >>> (await policies.at(Version(3))).version
        3

    """

    def __init__(
        self,
        runtime: PolicyRuntime,
        *,
        model: Path,
        start: Path,
        version: Version,
        fetch: Callable[[Version], Mapping[str, Array]] | None,
    ) -> None:
        """Take the model, the directory of `version`'s weights, and what fetches other versions.

        `start` may be a checkpoint, which is pruned some time; `model` stays.

        Without it every version is that of the directory: nothing is trained.
        """
        self._runtime = runtime
        self._model = model
        self._start = start
        self._first = version
        self._fetch = fetch
        self._held: dict[Version, asyncio.Future[ResidentPolicy]] = {}

    async def at(self, version: Version) -> ResidentPolicy:
        """Return the policy of a version; all that ask for it share one."""
        found = self._held.get(version)
        if found is None or (found.done() and found.exception() is not None):
            loading = asyncio.get_running_loop().run_in_executor(None, self._load, version)
            self._held[version] = found = asyncio.ensure_future(loading)
            for old in sorted(self._held)[:-_KEPT]:
                del self._held[old]
        return await asyncio.shield(found)

    def _load(self, version: Version) -> ResidentPolicy:
        fetch = None if version == self._first else self._fetch
        weights = None if fetch is None else fetch(version)
        place = self._start if weights is None else self._model
        return ResidentPolicy(version=version, policy=self._runtime.load(place, weights))
