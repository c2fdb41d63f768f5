"""Planner: what each sequence computes in the next step, and what it copies instead.

Requests are admitted in the order they were added, while there are rows and prefill tokens to
spare. A prefix another row already holds is copied at once; one that another row computes in this
very step is copied inside the step, layer by layer. Only rows that are part of the step are the
source of the latter, so no row is overwritten between plan and copy.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollart.engines.torch.batch import Copy, Piece
from rollart.engines.torch.cache import KVCache
from rollart.engines.torch.options import TorchEngineOptions
from rollart.engines.torch.sampler import Filters
from rollart.engines.torch.sessions import Session, Sessions
from rollart.types import Request, TrajectoryId

Waiting = deque[tuple[Request, Filters]]


@dataclass(slots=True, kw_only=True)
class Plan:
    """One step: sessions and what they compute, in the same order."""

    budget: int
    """Prefill tokens not yet given out."""
    sessions: list[Session] = field(default_factory=list[Session])
    pieces: list[Piece] = field(default_factory=list[Piece])
    copies: list[Copy] = field(default_factory=list[Copy])
    prefill_tokens: int = 0
    reused_tokens: int = 0
    recomputed_tokens: int = 0


class Planner:
    """Plans steps over the sessions of one engine."""

    def __init__(self, options: TorchEngineOptions, *, sessions: Sessions, cache: KVCache) -> None:
        self._options = options
        self._sessions = sessions
        self._cache = cache

    def plan(self, running: dict[TrajectoryId, Session], waiting: Waiting) -> Plan:
        """Plan the next step, moving what is admitted from `waiting` to `running`."""
        plan = Plan(budget=self._options.prefill_tokens)
        for session in running.values():
            self._advance(session, plan)
        for session in self._admit(running, waiting, plan):
            self._advance(session, plan)
        return plan

    def _admit(
        self, running: dict[TrajectoryId, Session], waiting: Waiting, plan: Plan
    ) -> Iterator[Session]:
        while waiting and len(running) < self._options.rows and plan.budget > 0:
            request, filters = waiting.popleft()
            room = self._options.max_length - len(request.tokens)
            session = self._sessions.start(
                request, filters, draws=min(request.sampling.max_tokens, room)
            )
            running[session.id] = session
            plan.reused_tokens += session.held
            yield session

    def _advance(self, session: Session, plan: Plan) -> None:
        """Give a session its piece of the step, if the budget allows one."""
        end = len(session.tokens)
        if end - session.planned > 1:
            if plan.budget == 0:
                return
            if session.planned == 0:
                self._share(session, plan)
        start = session.planned
        count = end - start
        if count > 1:
            count = min(count, plan.budget)
            plan.budget -= count
            self._sessions.index.extend(session.row, session.tokens, length=start + count)
        session.planned = stop = start + count
        self._count(session, plan, start=start, stop=stop)
        plan.sessions.append(session)
        plan.pieces.append(
            Piece(
                row=session.row,
                start=start,
                tokens=session.tokens[start:stop],
                samples=stop == end,
            )
        )

    def _share(self, session: Session, plan: Plan) -> None:
        """Copy the longest prefix another session holds, or will when this step is done."""
        found = self._sessions.source(session)
        if found is None:
            return
        source, length = found
        copy = Copy(source=source.row, target=session.row, length=length)
        if length <= source.held:
            self._cache.copy(copy.source, copy.target, length=length)
            session.held = length
        else:
            plan.copies.append(copy)
        session.planned = length
        self._sessions.index.extend(session.row, session.tokens, length=length)
        plan.reused_tokens += length

    def _count(self, session: Session, plan: Plan, *, start: int, stop: int) -> None:
        if start < session.stale:
            plan.recomputed_tokens += min(stop, session.stale) - start
        if session.running is not None:
            prompt = len(session.running.request.tokens)
            if start < prompt:
                plan.prefill_tokens += max(0, min(stop, prompt) - max(start, session.stale))
