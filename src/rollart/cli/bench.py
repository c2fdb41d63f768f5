"""`rollart bench`: the benchmarks of the source checkout, by name.

A benchmark is a module `benchmarks/NAME.py` with `NAME: str` and `run(*, effort: Effort) -> dict`.
`plain` ends within five minutes on two quiet cores; `full` repeats more; `quick` is the smallest
edition, for tests. What a benchmark prints goes to standard error; standard output has the result
alone.
"""

import ast
import contextlib
import importlib
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rollart.cli.output import BOLD, paint, say, say_table
from rollart.errors import UserError
from rollart.plugins import find_checkout

Effort: TypeAlias = Literal["quick", "plain", "full"]
"""How much a benchmark repeats."""


def add_bench(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Run a benchmark of the source checkout; without a name, list them."
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a benchmark, e.g. modes, faults or engine"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    effort = parser.add_mutually_exclusive_group()
    for name, about in (
        ("quick", "run the smallest edition; the figures are less exact"),
        ("full", "repeat more; may take longer than five minutes"),
    ):
        effort.add_argument(
            f"--{name}", dest="effort", action="store_const", const=name, help=about
        )
    parser.set_defaults(effort="plain")


def run_bench(arguments: Namespace) -> int:
    """List benchmarks or run one."""
    directory = find_benchmarks()
    names = {path.stem: path for path in sorted(directory.glob("[a-z]*.py"))}
    if arguments.name is None:
        say(paint(f"benchmarks in {directory}", BOLD))
        say_table({name: _about(path) for name, path in names.items()}, indent="  ")
        return 0
    if arguments.name not in names:
        near = get_close_matches(arguments.name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise UserError(f"no such benchmark {arguments.name!r}; {hint}")
    result = _measure(directory, arguments.name, effort=arguments.effort)
    if arguments.json:
        say(json.dumps(result))
    else:
        say_table(result)
    return 0


def find_benchmarks() -> Path:
    """Return the directory of benchmarks: next to the source, or in the current directory."""
    return find_checkout("benchmarks") / "benchmarks"


def _measure(directory: Path, name: str, *, effort: Effort) -> Mapping[str, Any]:
    root = str(directory.parent)
    if root not in sys.path:
        sys.path.append(root)
    start = time.monotonic()
    with contextlib.redirect_stdout(sys.stderr):
        benchmark = importlib.import_module(f"benchmarks.{name}")
        result: Mapping[str, Any] = benchmark.run(effort=effort)
    sys.stderr.write(f"{name}: {time.monotonic() - start:.1f} s\n")
    return result


def _about(path: Path) -> str:
    """Return the first line of a benchmark's docstring, without running it."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
