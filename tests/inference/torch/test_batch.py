"""Which rows attend together, and which of those are gathered."""

import pytest
import torch

from rollart.inference.torch.batch import Piece, pack
from rollart.inference.torch.cache import KVCache

WORTH = 256
"""Positions gathered in the time of one call: 64 KiB of keys and values of 256 bytes."""


def runs_of(pieces: list[Piece]) -> list[tuple[int, int, int, bool]]:
    """Return row, rows, tokens of a row and whether they are gathered, run by run."""
    cache = KVCache((16, 2, 512, 16), layers=1, device=torch.device("cpu"), dtype=torch.float32)
    assert cache.position_bytes * WORTH == 1 << 16
    runs = pack(pieces, copies=[], cache=cache).runs
    return [(run.row, run.rows, run.count, run.gather is not None) for run in runs]


def piece(row: int, start: int, count: int = 1) -> Piece:
    return Piece(row=row, start=start, tokens=[1] * count, samples=True)


def test_neighbours_that_decode_attend_together() -> None:
    assert runs_of([piece(row, 400) for row in (3, 4, 5)]) == [(3, 3, 1, False)]


def test_short_rows_that_are_scattered_are_gathered() -> None:
    assert runs_of([piece(row, 99) for row in (0, 2, 4)]) == [(0, 3, 1, True)]


def test_long_rows_that_are_scattered_attend_apart() -> None:
    pieces = [piece(row, 399) for row in (0, 2, 3, 5)]
    assert runs_of(pieces) == [(0, 1, 1, False), (2, 2, 1, False), (5, 1, 1, False)]


@pytest.mark.parametrize(
    ("rows", "start", "expected"),
    [
        ((4, 5, 6), 400, [(4, 3, 9, False)]),
        ((4, 6, 8), 100, [(4, 3, 9, True)]),
        ((4, 5, 8), 400, [(4, 2, 9, False), (8, 1, 9, False)]),
    ],
)
def test_longer_pieces_of_one_length_attend_together_if_neighbours_or_short(
    rows: tuple[int, ...], start: int, expected: list[tuple[int, int, int, bool]]
) -> None:
    assert runs_of([piece(row, start, 9) for row in rows]) == expected


def test_a_short_row_apart_does_not_have_long_neighbours_gathered() -> None:
    pieces = [piece(0, 400, 9), piece(1, 400, 9), piece(5, 10, 9)]
    assert runs_of(pieces) == [(0, 2, 9, False), (5, 1, 9, False)]


def test_pieces_of_other_lengths_attend_by_themselves() -> None:
    pieces = [piece(0, 7), piece(1, 0, 5), piece(2, 0, 6)]
    assert runs_of(pieces) == [(0, 1, 1, False), (1, 1, 5, False), (2, 1, 6, False)]
