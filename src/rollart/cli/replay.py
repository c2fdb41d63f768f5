"""`rollart replay`: a run's log re-fed to the scheduler."""

import json
from argparse import Namespace
from pathlib import Path

from rollart.cli.printing import complain, say, say_table
from rollart.errors import UserError
from rollart.observe.log import read_log
from rollart.observe.trace import write_trace
from rollart.replay import replay

LOG = "events.jsonl"


def run(arguments: Namespace) -> int:
    """Replay a run and print what was proved."""
    directory = Path(arguments.directory)
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; name a run, e.g. runs/quickstart")
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
    return 0
