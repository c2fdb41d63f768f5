"""Sessions: which trajectory owns which row, what it holds, and what it is still to compute.

A session keeps its row from its first request until it is forgotten or, while idle, evicted as
the least recently used. Free rows are taken lowest first, so the rows in use are a function of
the requests alone.
"""

import heapq
from dataclasses import dataclass, field

from rollart.engines.torch.prefixes import PrefixIndex, shared_length
from rollart.engines.torch.sampler import Filters, uniforms
from rollart.errors import InvariantError
from rollart.types import Completion, FinishReason, Request, TrajectoryId, Version


@dataclass(slots=True, kw_only=True)
class Running:
    """A request in progress."""

    request: Request
    filters: Filters
    places: list[float]
    """The uniform number of each draw to come."""
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[Version] = field(default_factory=list[Version])

    def complete(self, tokens: list[int], finish: FinishReason) -> Completion:
        """Return what was sampled; `tokens` is the whole sequence."""
        count = len(self.logprobs)
        return Completion(
            session=self.request.session,
            turn=self.request.turn,
            tokens=tuple(tokens[len(tokens) - count :]),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            finish=finish,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """A trajectory's sequence in a row of the cache."""

    id: TrajectoryId
    row: int
    tokens: list[int] = field(default_factory=list[int])
    held: int = 0
    """Leading tokens whose keys and values the row holds now."""
    planned: int = 0
    """The same after the step being planned."""
    stale: int = 0
    """Leading tokens that were held under older weights and are to be computed again."""
    running: Running | None = None
    forgotten: bool = False
    """Whether the row is to be freed as soon as the request ends."""


class Sessions:
    """Sessions by id, their rows, and the index of what the rows hold."""

    def __init__(self, rows: int) -> None:
        self._by_id: dict[TrajectoryId, Session] = {}
        self._by_row: dict[int, Session] = {}
        self._free = list(range(rows))
        self._idle: dict[TrajectoryId, Session] = {}
        self.index = PrefixIndex()

    def find(self, session: TrajectoryId) -> Session | None:
        """Return a session that has a row."""
        return self._by_id.get(session)

    def start(self, request: Request, filters: Filters, *, draws: int) -> Session:
        """Give a request its session's row, keeping what the row already holds of its prompt."""
        session = self._by_id.get(request.session)
        if session is None:
            session = self._open(request.session)
        else:
            del self._idle[request.session]
        tokens = list(request.tokens)
        kept = min(shared_length(session.tokens[: session.held], tokens), len(tokens) - 1)
        self.index.trim(session.row, length=kept)
        session.tokens = tokens
        session.held = session.planned = kept
        session.stale = 0
        session.running = Running(
            request=request, filters=filters, places=uniforms(request.seed, draws)
        )
        return session

    def source(self, session: Session) -> tuple[Session, int] | None:
        """Return another session that holds or will hold part of this one's tokens, how many."""
        row = self.index.find(session.tokens)
        if row is None:
            return None
        other = self._by_row[row]
        length = shared_length(other.tokens[: other.planned], session.tokens)
        return other, min(length, len(session.tokens) - 1)

    def finish(self, session: Session, reason: FinishReason) -> Completion:
        """End a session's request; the session stays, idle, unless it was forgotten."""
        if session.running is None:
            raise InvariantError(f"session {session.id} has no request to finish")
        completion = session.running.complete(session.tokens, reason)
        session.running = None
        self._idle[session.id] = session
        self.index.extend(session.row, session.tokens, length=session.held)
        if session.forgotten:
            self.close(session)
        return completion

    def close(self, session: Session) -> None:
        """Free an idle session's row."""
        del self._idle[session.id]
        del self._by_id[session.id]
        del self._by_row[session.row]
        self.index.drop(session.row)
        heapq.heappush(self._free, session.row)

    def invalidate(self) -> None:
        """Free idle sessions and mark what running ones hold as stale."""
        for session in list(self._idle.values()):
            self.close(session)
        for session in self._by_id.values():
            self.index.drop(session.row)
            session.stale = max(session.stale, session.held)
            session.held = session.planned = 0

    def _open(self, id: TrajectoryId) -> Session:  # noqa: A002
        if not self._free:
            self.close(next(iter(self._idle.values())))
        session = Session(id=id, row=heapq.heappop(self._free))
        self._by_id[id] = session
        self._by_row[session.row] = session
        return session
