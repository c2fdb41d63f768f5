"""`rollart eval` and `rollart replay`: what a run that has ended can be asked.

`eval` plays held-out episodes with its weights; `replay` feeds its log to the scheduler again.
"""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import cast

from rollart.api import check_saved
from rollart.cli.output import (
    BOLD,
    GREEN,
    YELLOW,
    complain,
    paint,
    say,
    say_table,
    silence_bars,
)
from rollart.cli.parser import add_overrides
from rollart.errors import UserError
from rollart.observe.log import read_log
from rollart.observe.replay import replay
from rollart.observe.run_directory import LOG
from rollart.observe.trace import write_trace
from rollart.types import Json


def add_eval(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Measure a trained model on held-out episodes."
    parser.add_argument(
        "path", metavar="RUN_OR_CHECKPOINT", help="the directory of a run, or of a checkpoint"
    )
    add_overrides(parser)
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="play N episodes (default: as in the config)"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="sample at temperature T; 0 is greedy"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run code that is inside the directory, if its config names it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_eval(arguments: Namespace) -> int:
    """Evaluate and print the figures."""
    path = Path(arguments.path)
    if not path.exists():
        raise UserError(f"{path}: no such run or checkpoint; name one, e.g. runs/quickstart")
    if arguments.episodes is not None and arguments.episodes < 1:
        raise UserError(f"--episodes {arguments.episodes}: must be at least 1")
    if arguments.temperature is not None and not 0 <= arguments.temperature < inf:
        raise UserError(f"--temperature {arguments.temperature}: must be at least 0 and finite")
    check_saved(path, given=str(path))
    silence_bars()
    from rollart.pipelines.evaluation import evaluate  # noqa: PLC0415 loads torch

    figures = evaluate(
        path,
        arguments.overrides,
        arguments.episodes,
        arguments.temperature,
        trust=arguments.trust,
    )
    if arguments.json:
        say(json.dumps(figures))
    else:
        say_table(figures)
    return 0


def add_replay(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Feed a run's event log to the scheduler again and check that it gives the same commands, "
        "that every trajectory ended exactly once and that the staleness bound was kept."
    )
    parser.add_argument("directory", metavar="RUN", help="the directory of a run")
    parser.add_argument("--trace", metavar="FILE", help="also write a timeline for Perfetto")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_replay(arguments: Namespace) -> int:
    """Replay a run and print what was proved."""
    directory = Path(arguments.directory)
    if not directory.is_dir():
        wrong = "is a file" if directory.exists() else "no such directory"
        raise UserError(f"{directory}: {wrong}; name a run's directory, e.g. runs/quickstart")
    figures = replay(directory)
    if arguments.trace is not None:
        parts = read_log(directory / LOG)
        write_trace(Path(arguments.trace), (each for part in parts for each in part.records))
    if arguments.json:
        say(json.dumps(figures))
    else:
        say_table(figures)
    if figures["lost"] or figures["trained_twice"]:
        complain("some trajectories were lost or trained twice: a bug in rollart worth reporting")
        return 1
    if not arguments.json:
        if arguments.trace is not None:
            where = f"{paint('timeline', BOLD)} {arguments.trace}"
            say(f"{where}: open it in https://ui.perfetto.dev or chrome://tracing")
        say(_verdict(figures))
    for warning in cast("list[str]", figures["selection_warnings"]):
        complain(f"{warning} (docs/bias.md)")
    return 0


def _verdict(figures: Mapping[str, Json]) -> str:
    """Say in a sentence what a log without faults proves."""
    count, still = figures["trajectories"], figures["open"]
    if not count:
        return f"{paint('nothing ran:', YELLOW)} the log holds no trajectory, so it proves nothing"
    ended = "every trajectory ended exactly once"
    if still:
        ended = f"no trajectory ended twice, {still:,} of {count:,} were open when the log ended"
    return (
        f"{paint('proved:', GREEN)} the scheduler decides the same again, {ended}, none was lost "
        f"or trained twice, {_age(figures)}"
    )


def _age(figures: Mapping[str, Json]) -> str:
    promised = figures["promised_staleness"]
    if "trained" not in cast("Mapping[str, Json]", figures["ended"]):
        return "no step was made"
    bound = "no bound is promised" if promised is None else f"promised {promised}"
    return f"staleness was at most {figures['max_staleness']} ({bound})"
