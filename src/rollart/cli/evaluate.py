"""`rollart eval`: a trained model on held-out episodes."""

import json
from argparse import ArgumentParser, Namespace
from math import inf
from pathlib import Path

from rollart.cli.output import say, say_table, silence_bars
from rollart.cli.parser import add_overrides
from rollart.cli.train import check_saved
from rollart.errors import UserError

ABOUT = "Measure a trained model on held-out episodes."


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("path", metavar="RUN_OR_CHECKPOINT", help="a run or a checkpoint in it")
    add_overrides(parser)
    parser.add_argument("--episodes", type=int, help="how many (default: the config's)")
    parser.add_argument("--temperature", type=float, help="of the draws; 0 is greedy")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: Namespace) -> int:
    """Evaluate and print the figures."""
    path = Path(arguments.path)
    if not path.exists():
        raise UserError(f"{path}: no such run or checkpoint")
    if arguments.episodes is not None and arguments.episodes < 1:
        raise UserError(f"--episodes {arguments.episodes}: must be at least 1")
    if arguments.temperature is not None and not 0 <= arguments.temperature < inf:
        raise UserError(f"--temperature {arguments.temperature}: must be at least 0 and finite")
    check_saved(path, given=str(path))
    silence_bars()
    from rollart.pipelines.evaluation import evaluate  # noqa: PLC0415 loads torch

    figures = evaluate(path, arguments.overrides, arguments.episodes, arguments.temperature)
    if arguments.json:
        say(json.dumps(figures))
    else:
        say_table(figures)
    return 0
