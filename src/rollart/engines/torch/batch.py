"""Batch: the tensors of one forward pass, built from what each sequence computes in it.

Tokens are packed without padding. Sequences that compute one token (decoding, or the last token
of a copied prompt) come first, in the order of their rows, so that neighbours in the cache are
neighbours in the batch and attend together as a run; longer pieces attend one by one.
"""

from dataclasses import dataclass

import torch

from rollart.engines.torch.cache import KVCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one sequence computes in a step."""

    row: int
    start: int
    """Position of the first token."""
    tokens: list[int]
    samples: bool
    """Whether the logits after the last token are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A prefix computed in this step by one row and wanted by another."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive rows that compute one token each; `rows` is None for one longer piece."""

    first: int
    stop: int
    """Tokens of the batch: from `first` up to `stop`."""
    row: int
    rows: int | None
    length: int
    """Positions of the cache to attend to."""
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One forward pass."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    runs: list[Run]
    copies: list[Copy]
    samples: torch.Tensor | None
    """Tokens whose logits are wanted; None for all."""


def order(pieces: list[Piece]) -> list[int]:
    """Return the order in which pieces are packed: single tokens by row, then the rest."""
    singles = [index for index, piece in enumerate(pieces) if len(piece.tokens) == 1]
    singles.sort(key=lambda index: pieces[index].row)
    return singles + [index for index, piece in enumerate(pieces) if len(piece.tokens) > 1]


def pack(pieces: list[Piece], *, copies: list[Copy], cache: KVCache) -> Batch:
    """Build the tensors for pieces that already lie in packing order."""
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
    runs = _single_runs(pieces[:singles], index[2], dtype)
    runs += _long_runs(pieces[singles:], singles, device=device, dtype=dtype)
    return Batch(
        tokens=index[0],
        positions=index[2],
        slots=cache.slots(index[1], index[2]),
        runs=runs,
        copies=copies,
        samples=_samples(pieces, singles=singles, count=len(tokens), device=device),
    )


def _single_runs(pieces: list[Piece], positions: torch.Tensor, dtype: torch.dtype) -> list[Run]:
    """Group pieces of one token into runs of consecutive rows."""
    runs: list[Run] = []
    if not pieces:
        return runs
    longest = max(piece.start for piece in pieces) + 1
    count = len(pieces)
    hidden = torch.arange(longest, device=positions.device) > positions[:count].unsqueeze(1)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    mask = mask.masked_fill_(hidden, float("-inf")).view(count, 1, 1, longest)
    first = 0
    for index in range(1, count + 1):
        if index < count and pieces[index].row == pieces[index - 1].row + 1:
            continue
        lengths = [piece.start + 1 for piece in pieces[first:index]]
        length = max(lengths)
        even = min(lengths) == length
        run = Run(
            first=first,
            stop=index,
            row=pieces[first].row,
            rows=index - first,
            length=length,
            mask=None if even else mask[first:index, :, :, :length],
        )
        runs.append(run)
        first = index
    return runs


def _long_runs(
    pieces: list[Piece], first: int, *, device: torch.device, dtype: torch.dtype
) -> list[Run]:
    """Give each longer piece its own run; without a mask it attends causally from position 0."""
    runs: list[Run] = []
    for piece in pieces:
        count = len(piece.tokens)
        length = piece.start + count
        mask = None
        if piece.start > 0:
            mask = torch.full((count, length), float("-inf"), device=device, dtype=dtype)
            mask = mask.triu_(piece.start + 1)
        runs.append(
            Run(first=first, stop=first + count, row=piece.row, rows=None, length=length, mask=mask)
        )
        first += count
    return runs


def _samples(
    pieces: list[Piece], *, singles: int, count: int, device: torch.device
) -> torch.Tensor | None:
    """Return the packed places of the last tokens of pieces that sample."""
    places: list[int] = []
    end = 0
    for piece in pieces:
        end += len(piece.tokens)
        if piece.samples:
            places.append(end - 1)
    if len(places) == count:
        return None
    return torch.tensor(places, dtype=torch.int64, device=device)
