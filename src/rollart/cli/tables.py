"""Tables: rows of like values as aligned text."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rollart.cli.printing import BOLD, paint, say


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
