"""The batch of one step: `StepPlanner` plans it, `pack` builds the tensors of its forward pass.

Requests are admitted in order while there are free rows and prefill tokens. A prefix that another
row holds is copied at once. One that another row computes in this same step is copied inside the
step, layer by layer; only rows of the step are such sources, so none is overwritten before.

Tokens are packed without padding. Sequences with one token (decoding, or the last token of a copied
prompt) come first, in row order, so that neighbours in the cache attend together in one call.
Scattered short rows are gathered if that costs less than the calls it saves. Longer pieces follow
by length; those of equal length attend together if they are neighbours or short.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch

from rollart.inference.torch.cache import KVCache, Session, Sessions
from rollart.inference.torch.options import TorchEngineOptions
from rollart.inference.torch.sampler import Filters
from rollart.types import Request, TrajectoryId

_CALL_BYTES = {"cpu": 1 << 16}
_CALL_BYTES_ELSEWHERE = 1 << 23
"""Bytes of keys and values that can be gathered in the time of one more call, by device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one sequence computes in a step.

    Example:
        >>> Piece(row=3, start=17, tokens=[42], samples=True)

    """

    row: int
    start: int
    """Position of the first token."""
    tokens: list[int]
    samples: bool
    """Whether a token is sampled after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A prefix that one row computes in this step and another row copies.

    Example:
        >>> Copy(source=0, target=1, length=512)

    """

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Rows that attend in one call, all with the same number of tokens.

    Example:
        >>> RowBlock(first=0, stop=4, row=2, rows=4, length=128, mask=None)

    """

    first: int
    stop: int
    """Its tokens in the batch are those from `first` up to `stop`."""
    row: int
    rows: int
    """Number of consecutive rows, starting with `row`."""
    gather: torch.Tensor | None = None
    """Row numbers if they are not consecutive."""
    count: int = 1
    """Tokens per row; several tokens without a mask attend causally."""
    length: int
    """Positions of the cache to attend to."""
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """The tensors of one forward pass.

    Example:
        >>> batch = pack(pieces, copies=[], cache=cache)
        >>> batch.tokens.shape == batch.positions.shape
        True

    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    runs: list[RowBlock]
    windowed_runs: list[RowBlock]
    """The same, with the masks of windowed layers."""
    copies: list[Copy]
    samples: torch.Tensor | None
    """Indices of tokens whose logits are needed; None: all."""


def order(pieces: list[Piece]) -> list[int]:
    """Return the packing order of pieces: by length, then by row."""
    keys = [(len(piece.tokens), piece.row) for piece in pieces]
    return sorted(range(len(pieces)), key=keys.__getitem__)


def pack(
    pieces: list[Piece], *, copies: list[Copy], cache: KVCache, window: int = 0
) -> ForwardBatch:
    """Build the tensors for pieces that are already in packing order.

    `window`: the positions that windowed layers attend to, 0 if there are no such layers.
    """
    device, dtype = cache.keys[0].device, cache.keys[0].dtype
    singles = 0
    while singles < len(pieces) and len(pieces[singles].tokens) == 1:
        singles += 1
    tokens = [piece.tokens[0] for piece in pieces[:singles]]
    rows = [piece.row for piece in pieces[:singles]]
    positions = [piece.start for piece in pieces[:singles]]
    for piece in pieces[singles:]:
        count = len(piece.tokens)
        tokens += piece.tokens
        rows += [piece.row] * count
        positions += range(piece.start, piece.start + count)
    index = torch.tensor((tokens, rows, positions), device=device)
    worth = _CALL_BYTES.get(device.type, _CALL_BYTES_ELSEWHERE) // cache.position_bytes
    runs = _single_runs(
        pieces[:singles], rows=index[1], positions=index[2], worth=worth, dtype=dtype
    )
    runs += _long_runs(pieces[singles:], singles, worth=worth, device=device, dtype=dtype)
    return ForwardBatch(
        tokens=index[0],
        positions=index[2],
        slots=cache.slots(index[1], index[2]),
        runs=runs,
        windowed_runs=[_narrow(run, index[2], window=window, dtype=dtype) for run in runs],
        copies=copies,
        samples=_samples(pieces, count=len(tokens), device=device),
    )


def _single_runs(
    pieces: list[Piece],
    *,
    rows: torch.Tensor,
    positions: torch.Tensor,
    worth: int,
    dtype: torch.dtype,
) -> list[RowBlock]:
    """Group pieces of one token into runs of consecutive rows, or gather them if cheaper."""
    if not pieces:
        return []
    count = len(pieces)
    lengths = [piece.start + 1 for piece in pieces]
    longest = max(lengths)
    hidden = torch.arange(longest, device=positions.device) > positions[:count].unsqueeze(1)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    mask = mask.masked_fill_(hidden, float("-inf")).view(count, 1, 1, longest)
    breaks = [i for i in range(1, count) if pieces[i].row != pieces[i - 1].row + 1]
    is_scattered = count * longest < len(breaks) * worth
    edges = [0, count] if is_scattered else [0, *breaks, count]
    runs: list[RowBlock] = []
    for first, stop in pairwise(edges):
        length = max(lengths[first:stop])
        even = min(lengths[first:stop]) == length
        run = RowBlock(
            first=first,
            stop=stop,
            row=pieces[first].row,
            rows=stop - first,
            gather=rows[:count] if is_scattered else None,
            length=length,
            mask=None if even else mask[first:stop, :, :, :length],
        )
        runs.append(run)
    return runs


def _long_runs(
    pieces: list[Piece], first: int, *, worth: int, device: torch.device, dtype: torch.dtype
) -> list[RowBlock]:
    """Group longer pieces of equal length where gathering them is cheaper than another call."""
    runs: list[RowBlock] = []
    place = 0
    while place < len(pieces):
        alike = _alike(pieces, place, worth=worth)
        count = len(alike[0].tokens)
        length = max(piece.start for piece in alike) + count
        rows = [piece.row for piece in alike]
        is_even = rows == list(range(rows[0], rows[0] + len(rows)))
        runs.append(
            RowBlock(
                first=first,
                stop=first + count * len(alike),
                row=rows[0],
                rows=len(rows),
                gather=None if is_even else torch.tensor(rows, device=device),
                count=count,
                length=length,
                mask=_long_mask(alike, length, device=device, dtype=dtype),
            )
        )
        first += count * len(alike)
        place += len(alike)
    return runs


def _alike(pieces: list[Piece], place: int, *, worth: int) -> list[Piece]:
    """Return the pieces from index `place` on that attend together."""
    count = len(pieces[place].tokens)
    longest = pieces[place].start + count
    is_even, stop = True, place + 1
    while stop < len(pieces) and len(pieces[stop].tokens) == count:
        is_even = is_even and pieces[stop].row == pieces[stop - 1].row + 1
        longest = max(longest, pieces[stop].start + count)
        if not is_even and longest > worth:
            break
        stop += 1
    return pieces[place:stop]


def _long_mask(
    pieces: list[Piece], length: int, *, device: torch.device, dtype: torch.dtype
) -> torch.Tensor | None:
    """Return a mask that hides the positions after each token; None if all rows start at 0."""
    starts = [piece.start for piece in pieces]
    if not any(starts):
        return None
    ends = torch.tensor(starts, device=device).view(-1, 1, 1, 1)
    ends = ends + torch.arange(len(pieces[0].tokens), device=device).view(1, 1, -1, 1)
    hidden = torch.arange(length, device=device) > ends
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)


def _narrow(run: RowBlock, positions: torch.Tensor, *, window: int, dtype: torch.dtype) -> RowBlock:
    """Return a run whose mask also hides what is too far back for a window."""
    if not window or run.length <= window:
        return run
    ends = positions[run.first : run.stop].view(run.rows, 1, run.count, 1)
    places = torch.arange(run.length, device=positions.device)
    hidden = (places > ends) | (places <= ends - window)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return replace(run, mask=mask.masked_fill_(hidden, -torch.inf))


def _samples(pieces: list[Piece], *, count: int, device: torch.device) -> torch.Tensor | None:
    """Return the packed indices of the last tokens of pieces that sample."""
    places: list[int] = []
    end = 0
    for piece in pieces:
        end += len(piece.tokens)
        if piece.samples:
            places.append(end - 1)
    if len(places) == count:
        return None
    return torch.tensor(places, dtype=torch.int64, device=device)


Waiting = deque[tuple[Request, Filters]]


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One step: sessions and their pieces, in the same order.

    Example:
        >>> StepPlan(budget=2048)

    """

    budget: int
    """Prefill tokens that are still free."""
    sessions: list[Session] = field(default_factory=list[Session])
    pieces: list[Piece] = field(default_factory=list[Piece])
    copies: list[Copy] = field(default_factory=list[Copy])
    prefill_tokens: int = 0
    reused_tokens: int = 0
    recomputed_tokens: int = 0


class StepPlanner:
    """Plans steps over the sessions of one engine."""

    def __init__(self, options: TorchEngineOptions, *, sessions: Sessions, cache: KVCache) -> None:
        self._options = options
        self._sessions = sessions
        self._cache = cache

    def plan(self, running: dict[TrajectoryId, Session], waiting: Waiting) -> StepPlan:
        """Plan the next step and move admitted requests from `waiting` to `running`."""
        plan = StepPlan(budget=self._options.prefill_tokens)
        for session in running.values():
            self._advance(session, plan)
        for session in self._admit(running, waiting, plan):
            self._advance(session, plan)
        return plan

    def _admit(
        self, running: dict[TrajectoryId, Session], waiting: Waiting, plan: StepPlan
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

    def _advance(self, session: Session, plan: StepPlan) -> None:
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
            if not session.is_mixed:
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

    def _share(self, session: Session, plan: StepPlan) -> None:
        """Copy the longest prefix that another session holds now or after this step."""
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

    def _count(self, session: Session, plan: StepPlan, *, start: int, stop: int) -> None:
        if start < session.stale:
            plan.recomputed_tokens += min(stop, session.stale) - start
        if session.running is not None:
            prompt = len(session.running.request.tokens)
            if start < prompt:
                plan.prefill_tokens += max(0, min(stop, prompt) - max(start, session.stale))
