"""Splits: which problems of an environment may be met in training, and which in evaluations.

A problem belongs to one split by what determines it, written as text, and by nothing else: whoever
draws it, with whatever seed, finds it in the same split. One in five is "test", the others "train".
"""

from collections.abc import Callable
from typing import TypeVar
from zlib import crc32

from rollart.types import Json

T = TypeVar("T")

_TEST_SHARE = 5
"""One problem in so many is kept for evaluations."""


def split_of(problem: str) -> str:
    """Return the split of a problem, given as the text that determines it."""
    return "test" if crc32(problem.encode()) % _TEST_SHARE == 0 else "train"


def draw_of_split(
    draw: Callable[[], T], name: Callable[[T], str], *, split: Json, redraws: int
) -> T:
    """Draw a problem of a split, of any if it is None; at last whatever was drawn, if none fits.

    `name` gives the text that determines a problem.
    """
    problem = draw()
    for _ in range(redraws):
        if split is None or split == split_of(name(problem)):
            break
        problem = draw()
    return problem
