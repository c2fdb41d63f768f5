"""Packing: sequences of different lengths laid into rows, rows into micro-batches.

A row holds whole sequences one after another; positions restart at each, and a token may attend
only to earlier tokens of its own segment, so a packed sequence computes what it would alone.
Attention costs the square of the row, so the default row is no longer than the longest sequence:
short ones fill the gaps and little is padding.

The last token of a sequence predicts nothing, so it is not laid out. Each sampled token is known
by the position before it (`predictors`) and by its place in the batch's flat arrays (`places`).

Where several ranks compute, each packs its own sequences, and all have as many micro-batches as
the one with the most: a rank with fewer adds idle ones, because ranks exchange weights and
gradients at every micro-batch and would wait for it forever. numpy only.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollart.training.batch import Batch, RankShare

Row = tuple[int, ...]
"""Indices of the sequences in one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """R rows of L positions, and the N sampled tokens they predict.

    Example:
        >>> micro = lay_out(batch, [0, 1], row_tokens=0, micro_batch_tokens=2048)[0]
        >>> micro.tokens.shape, micro.places
        ((2, 8), array([ 2,  4,  5, 11]))

    """

    tokens: NDArray[np.int64]
    """[R, L] ids, 0 in the padding."""
    positions: NDArray[np.int64]
    """[R, L] position in the sequence, restarting at each."""
    segments: NDArray[np.int64]
    """[R, L] which sequence of the row, from 0; padding is a segment of its own."""
    is_packed: bool
    """Whether some row holds more than one sequence: only then does attention need the segments."""
    predictors: NDArray[np.int64]
    """[N] flat index into the R·L positions, of the one before each sampled token."""
    places: NDArray[np.int64]
    """[N] index of each sampled token in the batch's flat arrays."""


IDLE = MicroBatch(
    tokens=np.zeros((1, 1), np.int64),
    positions=np.zeros((1, 1), np.int64),
    segments=np.zeros((1, 1), np.int64),
    is_packed=False,
    predictors=np.zeros(0, np.int64),
    places=np.zeros(0, np.int64),
)
"""A micro-batch that predicts nothing: what a rank computes while only others have work."""
ALONE = RankShare()


def lay_out(
    batch: Batch,
    sequences: Sequence[int],
    *,
    row_tokens: int,
    micro_batch_tokens: int,
    share: RankShare = ALONE,
) -> list[MicroBatch]:
    """Pack a rank's share of the named sequences of a batch, as many micro-batches as all have.

    `row_tokens` 0 takes the longest sequence for a row, 1 packs nothing.
    """
    lengths = np.diff(batch.offsets) - 1
    wanted = {index: int(lengths[index]) for index in sequences if lengths[index] > 0}
    limit = row_tokens or max(wanted.values(), default=0)
    laid = [
        split(pack(part, row_tokens=limit), part, micro_batch_tokens=micro_batch_tokens)
        for part in share.parts(wanted)
    ]
    micros = [_build(batch, group) for group in laid[share.rank]]
    return micros + [IDLE] * (max(map(len, laid)) - len(micros))


def pack(lengths: dict[int, int], *, row_tokens: int) -> list[Row]:
    """Put each sequence, longest first, into the fullest row that still takes it."""
    rows: list[list[int]] = []
    gaps: list[tuple[int, int]] = []
    for index in sorted(lengths, key=lambda key: (-lengths[key], key)):
        at = bisect_left(gaps, (lengths[index], -1))
        if at < len(gaps):
            gap, row = gaps.pop(at)
        else:
            gap, row = row_tokens, len(rows)
            rows.append([])
        rows[row].append(index)
        if gap > lengths[index]:
            insort(gaps, (gap - lengths[index], row))
    return [tuple(row) for row in rows]


def split(
    rows: Sequence[Row], lengths: dict[int, int], *, micro_batch_tokens: int
) -> list[list[Row]]:
    """Share rows of like length out over micro-batches of at most so many padded tokens."""
    widths = {row: sum(lengths[index] for index in row) for row in rows}
    groups: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (-widths[row], row)):
        if groups and (len(groups[-1]) + 1) * widths[groups[-1][0]] <= micro_batch_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _build(batch: Batch, rows: Sequence[Row]) -> MicroBatch:
    spans = [[batch.offsets[index : index + 2] for index in row] for row in rows]
    width = max(sum(int(end - start) - 1 for start, end in row) for row in spans)
    shape = (len(rows), width)
    tokens, segments = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    positions = np.tile(np.arange(width), (len(rows), 1))
    predictors: list[NDArray[np.int64]] = []
    places: list[NDArray[np.int64]] = []
    for number, row in enumerate(spans):
        column = 0
        for segment, (start, end) in enumerate(row):
            size = int(end - start) - 1
            tokens[number, column : column + size] = batch.tokens[start : end - 1]
            drawn = np.flatnonzero(batch.sampled[start + 1 : end])
            predictors.append(number * width + column + drawn)
            places.append(start + 1 + drawn)
            column += size
            segments[number, column:] = segment + 1
            positions[number, column:] = np.arange(width - column)
    return MicroBatch(
        tokens=tokens,
        positions=positions,
        segments=segments,
        is_packed=any(len(row) > 1 for row in rows),
        predictors=np.concatenate(predictors),
        places=np.concatenate(places),
    )
