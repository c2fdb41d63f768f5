"""The engine driver (the paper's LLMProxy): runs one step-driven engine and is its Generator.

One loop per engine: between two steps it adds new requests and aborts, then runs one prefill or
decode step in the engine's own thread. A finished request is completed at once, so none waits for
another. While suspended the driver takes no step and keeps all requests. After a weight update they
continue with the tokens they have; after an eviction each is returned with its tokens, to continue
on another engine.

A failed engine fails every present and later request, so none waits for ever. A hanging engine
blocks only its own thread, which ends with the process.
"""

import asyncio
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from rollart.clock import SystemClock
from rollart.cluster.local_host import SerialExecutor
from rollart.errors import EngineError, InvariantError, RollartError, UserError
from rollart.ports import Array, Engine, OnCut
from rollart.types import Completion, EngineId, Request, TrajectoryId, Version


class RequestError(RollartError):
    """The engine refuses one request; other requests are not affected."""


class Pending:
    """A request whose caller waits for its completion."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.answer: Completion | None = None
        """The completion, kept even if the caller was cancelled just before it arrived."""

    def settle(self, completion: Completion) -> None:
        """Set the completion."""
        self.answer = completion
        if not self.future.done():
            self.future.set_result(completion)

    def refuse(self, error: RequestError) -> None:
        """Set the error of a request that gets no completion."""
        if not self.future.done():
            self.future.set_exception(error)


class EngineDriver:
    """Forwards requests to one engine; suspends, updates and resumes it."""

    def __init__(
        self,
        engine: Engine,
        *,
        id: EngineId,  # noqa: A002
        fetch: Callable[[Version], Mapping[str, Array]] | None = None,
        pulled_s: Callable[[Version], float] | None = None,
        keep_kv: bool = False,
    ) -> None:
        """Own `engine`; load weights with `fetch`, without which it keeps those it has.

        `pulled_s` returns how long pulling a version took, if part of it happened before `fetch`.
        """
        self.id = id
        self._engine = engine
        self._fetch = fetch
        self._pulled_s = pulled_s
        self._clock = SystemClock()
        self._keep_kv = keep_kv
        self._thread = SerialExecutor(f"engine-{id}")
        self._added: list[Request] = []
        self._ended: list[tuple[TrajectoryId, bool]] = []
        self._waiting: dict[TrajectoryId, Pending] = {}
        self._cut: dict[TrajectoryId, OnCut] = {}
        """Callbacks of requests that will be aborted in the next step."""
        self._work = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()
        self._stepping = asyncio.Lock()
        self._broken: Exception | None = None

    @property
    def version(self) -> Version:
        """The version of the weights the engine holds."""
        return self._engine.version

    @property
    def in_flight(self) -> int:
        """How many requests wait for their completion."""
        return len(self._waiting)

    def stats(self) -> Mapping[str, float]:
        """Return the engine's counters."""
        return self._engine.stats()

    async def generate(self, request: Request, on_cut: OnCut | None = None) -> Completion:
        """Complete one request.

        Cancelling the await aborts it; `on_cut` then gets the number of tokens sampled so far.
        """
        if self._broken is not None:
            raise self._broken
        self._waiting[request.session] = pending = Pending(request)
        self._added.append(request)
        self._work.set()
        try:
            return await pending.future
        except asyncio.CancelledError:
            note_cut(pending, on_cut, self._cut)
            self._ended.append((request.session, True))
            self._work.set()
            raise
        finally:
            del self._waiting[request.session]

    def forget(self, session: TrajectoryId) -> None:
        """Drop the cache of a session that ended."""
        self._ended.append((session, False))
        self._work.set()

    async def suspend(self) -> None:
        """Finish the current step and take no further one."""
        self._running.clear()
        async with self._stepping:
            pass

    async def update(self, version: Version) -> Mapping[str, float]:
        """Fetch and load published weights while suspended, unless the engine has them already.

        Return the seconds it took: `pull_s`, of which `exposed_s` while the engine was paused, and
        `load_s`.
        """
        async with self._stepping:
            if self._broken is not None:
                raise self._broken
            if self._engine.version == version:
                return {}
            return await self._thread.submit(lambda: self._load(version))

    async def resume(self) -> None:
        """Take steps again."""
        self._running.set()

    async def evict(self) -> None:
        """Suspend and return every request with the tokens it has."""
        await self.suspend()
        async with self._stepping:
            if self._broken is not None:
                raise self._broken
            added, self._added = self._added, []
            ended, self._ended = self._ended, []
            running = self._waiting.keys() - {request.session for request in added}
            partial, cut = await self._thread.submit(lambda: self._abandon(sorted(running), ended))
        self._complete([*partial, *map(untouched, added)])
        self._report_cut(cut)

    async def run(self) -> None:
        """Drive the engine until cancelled."""
        try:
            while True:
                await self._work.wait()
                await self._running.wait()
                # Yield once, so that requests released together join the same step.
                await asyncio.sleep(0)
                async with self._stepping:
                    if self._running.is_set():
                        await self._step()
        except Exception as error:
            self._broken = broken = self._explain(error)
            for pending in self._waiting.values():
                if not pending.future.done():
                    pending.future.set_exception(broken)
            raise broken from error
        finally:
            self._thread.stop()

    async def _step(self) -> None:
        self._work.clear()
        added, self._added = self._added, []
        ended, self._ended = self._ended, []
        done, refused, cut = await self._thread.submit(lambda: self._advance(added, ended))
        self._complete(done)
        self._report_cut(cut)
        for session, error in refused:
            pending = self._waiting.get(session)
            if pending is not None:
                pending.refuse(RequestError(str(error)))
        if self._engine.busy:
            self._work.set()

    def _complete(self, completions: list[Completion]) -> None:
        for completion in completions:
            pending = self._waiting.get(completion.session)
            if pending is not None:
                pending.settle(completion)
            else:
                self._report_cut([completion])

    def _report_cut(self, cut: list[Completion]) -> None:
        for completion in cut:
            on_cut = self._cut.pop(completion.session, None)
            if on_cut is not None:
                on_cut(len(completion.tokens))

    def _advance(
        self, added: list[Request], ended: list[tuple[TrajectoryId, bool]]
    ) -> tuple[list[Completion], list[tuple[TrajectoryId, UserError]], list[Completion]]:
        refused: list[tuple[TrajectoryId, UserError]] = []
        for request in added:
            try:
                self._engine.add(request)
            except UserError as error:
                refused.append((request.session, error))
        cut = self._end(ended)
        return (self._engine.step() if self._engine.busy else []), refused, cut

    def _abandon(
        self, running: list[TrajectoryId], ended: list[tuple[TrajectoryId, bool]]
    ) -> tuple[list[Completion], list[Completion]]:
        cut = self._end(ended)
        partial = [self._engine.abort(session) for session in running]
        for session in running:
            self._engine.forget(session)
        return [completion for completion in partial if completion is not None], cut

    def _end(self, ended: list[tuple[TrajectoryId, bool]]) -> list[Completion]:
        cut: list[Completion] = []
        for session, aborted in ended:
            completion = self._engine.abort(session) if aborted else None
            if completion is not None:
                cut.append(completion)
            self._engine.forget(session)
        return cut

    def _explain(self, error: Exception) -> Exception:
        """Return the error a run ends with when a step of the engine raised."""
        if isinstance(error, (UserError, InvariantError)):
            return error
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return EngineError(
            f"engine {self.id} failed in a step: {type(error).__name__}: {error} ({where}); if it "
            "ran out of memory, lower engine.torch.rows, cached_sessions or max_length"
        )

    def _load(self, version: Version) -> Mapping[str, float]:
        if self._fetch is None:
            raise InvariantError(f"engine {self.id} has no weight store to load {version} from")
        start_s = self._clock.now()
        weights = self._fetch(version)
        exposed_s = self._clock.now() - start_s
        self._engine.update(version, weights, keep_kv=self._keep_kv)
        return {
            "pull_s": exposed_s if self._pulled_s is None else self._pulled_s(version),
            "exposed_s": exposed_s,
            "load_s": self._clock.now() - start_s - exposed_s,
        }


def note_cut(pending: Pending, on_cut: OnCut | None, cut: dict[TrajectoryId, OnCut]) -> None:
    """Call `on_cut` for a cancelled request, soon or when the engine has aborted it.

    Never at once: the end of its attempt must be reported first.
    """
    if on_cut is None:
        return
    if pending.answer is None:
        cut[pending.request.session] = on_cut
    else:
        asyncio.get_running_loop().call_soon(on_cut, len(pending.answer.tokens))


def untouched(request: Request) -> Completion:
    """Return the completion of a request without any sampled token."""
    return Completion(
        session=request.session,
        turn=request.turn,
        tokens=(),
        logprobs=(),
        versions=(),
        finish="abort",
    )
