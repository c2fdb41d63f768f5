"""Printing: plain text and aligned tables, coloured only where a person looks.

What is printed may come from a model, an environment or another machine: control characters in it
are written out, so that only our own colours reach the terminal.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from math import inf
from typing import IO, Any, cast

from rollart.errors import printable

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"
_COLOUR = re.compile("(\x1b\\[(?:0|1|2|31|32|33)m)")


def say(text: str = "") -> None:
    """Write a line to standard output; of its control characters, only our colours stay."""
    pieces = _COLOUR.split(text)
    sys.stdout.write("".join(p if n % 2 else printable(p) for n, p in enumerate(pieces)) + "\n")


def complain(message: str) -> None:
    """Write one error to standard error."""
    sys.stderr.write(f"{paint('error:', RED, file=sys.stderr)} {printable(message)}\n")


def note(message: str) -> None:
    """Write something worth knowing to standard error, apart from what a program reads."""
    sys.stderr.write(f"{paint('note:', YELLOW, file=sys.stderr)} {printable(message)}\n")


def paint(text: str, code: str, *, file: IO[str] | None = None) -> str:
    """Colour text if it goes to a terminal that wants colours."""
    stream = sys.stdout if file is None else file
    if not stream.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{code}m{printable(text)}\x1b[0m"


def say_table(values: Mapping[str, object], *, indent: str = "") -> None:
    """Write names and values in two columns; nested tables are indented."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            say(f"{indent}{name}")
            say_table(cast("Mapping[str, Any]", value), indent=indent + "  ")
        else:
            say(f"{indent}{paint(name.ljust(width), DIM)}  {_show(value)}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "step"), counted(2, "trajectory")
        ('1 step', '2 trajectories')

    """
    if number == 1:
        return f"1 {noun}"
    many = noun[:-1] + "ies" if noun.endswith("ry") else noun + "s"
    return f"{number} {many}"


def silence_bars() -> None:
    """Keep libraries' own progress bars away from ours; must run before they are imported."""
    os.environ.setdefault("TQDM_DISABLE", "1")


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < inf else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value == {} else str(value)


def say_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows under a head made of their keys; numbers stand to the right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[show(row.get(name)) for name in names] for row in rows]
    widths = [
        max(len(name), *(len(row[column]) for row in cells)) for column, name in enumerate(names)
    ]
    is_number = [
        all(isinstance(row.get(name), int | float | None) for row in rows) for name in names
    ]
    say(paint(_line(names, widths, is_number), BOLD))
    for row in cells:
        say(_line(row, widths, is_number))


def show(value: object) -> str:
    """Return a value as a cell's text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return ", ".join(f"{name} {show(each)}" for name, each in pairs)
    return str(value)


def _line(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, is_number, strict=True)
    )
    return "  ".join(padded).rstrip()
