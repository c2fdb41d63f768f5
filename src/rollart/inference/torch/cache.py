"""The key-value cache: its tensors, the sessions that own its rows, and the index of prefixes.

`KVCache`: a row holds one session's sequence from position 0 on. Positions beyond its length hold
old but finite numbers, which masks hide exactly, so rows are never cleared.

`PrefixIndex`: sequences are cut into blocks, each named by a hash of all tokens up to its end. So
the row that shares most with a prompt is found in time linear in the prompt. A hash only suggests a
row; the tokens are compared before a copy.

`Sessions`: a session keeps its row from its first request until it is forgotten or, while idle,
evicted as least recently used. The lowest free row is taken first, so rows depend on requests only.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy
import torch

from rollart.errors import InvariantError
from rollart.inference.torch.sampler import Filters, uniforms
from rollart.types import Completion, FinishReason, Request, TrajectoryId, Version


class KVCache:
    """Key and value tensors of shape (rows, key heads, max length, head dimension)."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        *,
        layers: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.shape = shape
        self.position_bytes = 2 * shape[1] * shape[3] * dtype.itemsize
        """Bytes of the keys and values of one position in one layer."""
        self.keys = [_zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [_zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self._flat_keys = [tensor.view(-1, shape[3]) for tensor in self.keys]
        self._flat_values = [tensor.view(-1, shape[3]) for tensor in self.values]
        self._heads = torch.arange(shape[1], device=device) * shape[2]

    def slots(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the indices at which `write` stores tokens of these rows and positions."""
        _, heads, length, _ = self.shape
        return ((rows * (heads * length) + positions).unsqueeze(1) + self._heads).view(-1)

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store one layer's keys and values (tokens, key heads, head dimension)."""
        dim = self.shape[3]
        self._flat_keys[layer].index_copy_(0, slots, keys.reshape(-1, dim))
        self._flat_values[layer].index_copy_(0, slots, values.reshape(-1, dim))

    def copy_layer(self, layer: int, source: int, target: int, *, length: int) -> None:
        """Copy the first `length` positions of one row to another, in one layer."""
        for tensor in (self.keys[layer], self.values[layer]):
            tensor[target, :, :length].copy_(tensor[source, :, :length])

    def copy(self, source: int, target: int, *, length: int) -> None:
        """Copy the first `length` positions of one row to another, in every layer."""
        for layer in range(len(self.keys)):
            self.copy_layer(layer, source, target, length=length)


def _zeros(shape: tuple[int, ...], *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros; on a CPU from numpy, which uses a page of memory only when it is written."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    width = {2: numpy.int16, 4: numpy.int32}[dtype.itemsize]
    return torch.from_numpy(numpy.zeros(shape, dtype=width)).view(dtype)


_BLOCK_TOKENS = 16


class PrefixIndex:
    """Maps prefixes to the rows that hold them."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, None]] = {}
        self._names: dict[int, list[int]] = {}

    def extend(self, row: int, tokens: Sequence[int], *, length: int) -> None:
        """Record that a row holds the first `length` tokens; recorded blocks must be unchanged."""
        names = self._names.setdefault(row, [])
        for name in _names(tokens, length, done=len(names), last=names[-1] if names else 0):
            names.append(name)
            self._rows.setdefault(name, {})[row] = None

    def trim(self, row: int, *, length: int) -> None:
        """Record that a row holds no more than its first `length` tokens."""
        names = self._names.get(row, [])
        while len(names) > length // _BLOCK_TOKENS:
            name = names.pop()
            rows = self._rows[name]
            del rows[row]
            if not rows:
                del self._rows[name]

    def drop(self, row: int) -> None:
        """Forget a row."""
        self.trim(row, length=0)
        self._names.pop(row, None)

    def find(self, tokens: Sequence[int]) -> int | None:
        """Return the row that shares the most blocks with `tokens`; the earliest of several."""
        found = None
        for name in _names(tokens, len(tokens), done=0, last=0):
            rows = self._rows.get(name)
            if not rows:
                break
            found = next(iter(rows))
        return found


def _names(tokens: Sequence[int], length: int, *, done: int, last: int) -> Iterator[int]:
    """Yield the hashes of complete blocks after the first `done`."""
    for start in range(done * _BLOCK_TOKENS, length - _BLOCK_TOKENS + 1, _BLOCK_TOKENS):
        last = hash((last, *tokens[start : start + _BLOCK_TOKENS]))
        yield last


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading tokens two sequences of the same type share, by bisection."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    low = 0
    while length - low > 1:
        middle = (low + length) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            length = middle
    return low


@dataclass(slots=True, kw_only=True)
class RunningRequest:
    """A request in progress.

    Example:
        >>> RunningRequest(request=request, filters=(1.0, 1.0, 0, 0.0), places=[0.25, 0.75])

    """

    request: Request
    filters: Filters
    places: list[float]
    """One uniform number per token to draw."""
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[Version] = field(default_factory=list[Version])

    def complete(self, tokens: list[int], finish: FinishReason) -> Completion:
        """Return the sampled tokens as a completion; `tokens` is the whole sequence."""
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
    """A trajectory's sequence in a row of the cache.

    Example:
        >>> Session(id=TrajectoryId(7), row=0, tokens=[1, 2, 3], held=2)

    """

    id: TrajectoryId
    row: int
    tokens: list[int] = field(default_factory=list[int])
    held: int = 0
    """Leading tokens whose keys and values the row holds now."""
    planned: int = 0
    """Leading tokens the row will hold after the step being planned."""
    stale: int = 0
    """Leading tokens held under older weights, which must be computed again."""
    running: RunningRequest | None = None
    forgotten: bool = False
    """Whether to free the row when the request ends."""
    is_mixed: bool = False
    """Whether the row also holds keys and values of older weights."""


class Sessions:
    """Sessions by id, their rows, and the index of the rows' prefixes."""

    def __init__(self, rows: int) -> None:
        self._by_id: dict[TrajectoryId, Session] = {}
        self._by_row: dict[int, Session] = {}
        self._free = list(range(rows))
        self._idle: dict[TrajectoryId, Session] = {}
        self.index = PrefixIndex()

    def find(self, session: TrajectoryId) -> Session | None:
        """Return the session if it has a row."""
        return self._by_id.get(session)

    def start(self, request: Request, filters: Filters, *, draws: int) -> Session:
        """Start a request in its session's row, keeping the part of its prompt the row holds."""
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
        session.running = RunningRequest(
            request=request, filters=filters, places=uniforms(request.seed, draws)
        )
        return session

    def source(self, session: Session) -> tuple[Session, int] | None:
        """Return a session that holds, or will hold, a prefix of this one, and its length."""
        row = self.index.find(session.tokens)
        if row is None:
            return None
        other = self._by_row[row]
        length = shared_length(other.tokens[: other.planned], session.tokens)
        return other, min(length, len(session.tokens) - 1)

    def finish(self, session: Session, reason: FinishReason) -> Completion:
        """End a session's request; keep the session idle unless it was forgotten."""
        if session.running is None:
            raise InvariantError(f"session {session.id} has no request to finish")
        completion = session.running.complete(session.tokens, reason)
        session.running = None
        self._idle[session.id] = session
        if session.forgotten or session.is_mixed:
            self.close(session)
        else:
            self.index.extend(session.row, session.tokens, length=session.held)
        return completion

    def close(self, session: Session) -> None:
        """Free an idle session's row."""
        del self._idle[session.id]
        del self._by_id[session.id]
        del self._by_row[session.row]
        self.index.drop(session.row)
        heapq.heappush(self._free, session.row)

    def invalidate(self) -> None:
        """Close idle sessions and mark the tokens of running ones as stale."""
        for session in list(self._idle.values()):
            self.close(session)
        for session in self._by_id.values():
            self.index.drop(session.row)
            self._mark_stale(session)

    def keep_running(self) -> None:
        """Close idle sessions; requests that have sampled keep what they hold until they end.

        Nothing else may use it: a later turn, or another session that copied its prefix, would
        sample tokens of the new version from keys and values of ever older ones.
        """
        for session in list(self._idle.values()):
            self.close(session)
        for session in self._by_id.values():
            self.index.drop(session.row)
            if session.running is not None and session.running.logprobs:
                session.is_mixed = True
            else:
                self._mark_stale(session)

    def _mark_stale(self, session: Session) -> None:
        session.stale = max(session.stale, session.held)
        session.held = session.planned = 0
        session.is_mixed = False

    def _open(self, id: TrajectoryId) -> Session:  # noqa: A002
        if not self._free:
            self.close(next(iter(self._idle.values())))
        session = Session(id=id, row=heapq.heappop(self._free))
        self._by_id[id] = session
        self._by_row[session.row] = session
        return session
