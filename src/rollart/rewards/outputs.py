"""Comparing what a program wrote with what it was to write.

`exact` wants every byte; `lines` forgives space at the ends of lines and empty lines at the end;
`words` forgives all white space and compares numbers as numbers, to a relative 1e-6.
"""

import math
from typing import Literal, TypeAlias

from rollart.errors import ConfigError

Compare: TypeAlias = Literal["exact", "lines", "words"]


def are_same(written: bytes, wanted: str, *, compare: Compare) -> bool:
    """Say whether an output is the one wanted."""
    if compare == "exact":
        return written == wanted.encode(errors="replace")
    text = written.decode(errors="replace")
    if compare == "lines":
        return _lines(text) == _lines(wanted)
    if compare == "words":
        left, right = text.split(), wanted.split()
        return len(left) == len(right) and all(map(_are_same_words, left, right))
    raise ConfigError("reward.options.compare", compare, "use exact, lines or words")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _are_same_words(left: str, right: str) -> bool:
    if left == right:
        return True
    try:
        return math.isclose(float(left), float(right), rel_tol=1e-6, abs_tol=1e-9)
    except ValueError:
        return False
