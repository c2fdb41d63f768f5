"""`rollart train`: a config in, a run's directory out.

What cannot be trained is refused before torch loads, which takes seconds.
"""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rollart.api import check_hardware, check_start, find_run, reading_run
from rollart.cli.config import describe_run, headline
from rollart.cli.output import say, silence_bars
from rollart.cli.parser import add_overrides
from rollart.config import Config, load_config
from rollart.config.writer import toml_value
from rollart.errors import UserError
from rollart.observe.run_directory import CONFIG
from rollart.plugins import find


def add_train(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Train an agent with the settings of a config file."
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG", help="a TOML file; examples/ has some"
    )
    add_overrides(parser)
    resume = (
        "continue the run or checkpoint in DIR; if a CONFIG is given too, write to the directory "
        "that CONFIG names and leave DIR unchanged"
    )
    parser.add_argument("--resume", metavar="DIR", help=resume)
    parser.add_argument(
        "--trust",
        action="store_true",
        help="with --resume: run code that is inside DIR, if its config names it",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be done, and train nothing"
    )
    parser.add_argument(
        "--address",
        metavar="ADDR",
        help='run on Ray: "local" starts it on this machine, "auto" or HOST:PORT joins a cluster',
    )


def run_train(arguments: Namespace) -> int:
    """Train, or show what would be trained."""
    resume = None if arguments.resume is None else Path(arguments.resume)
    overrides = list(arguments.overrides)
    if arguments.address is not None:
        overrides.append(f"ray.address={toml_value(arguments.address)}")
    named, overrides = _split(arguments.config, overrides)
    own = find_run(resume, given=f"--resume {resume}") if resume and named is None else None
    with reading_run(own, trust=arguments.trust):
        config = read_config(named, overrides, resume=resume)
        check_start(config, resume=resume)
        if arguments.dry_run:
            say(describe_run(config, resume=resume))
            return 0
        silence_bars()
        check_hardware(config)
        if resume is None:
            sys.stderr.write(f"{headline(config)}\n")
        train = find("pipeline", config.run.pipeline, field="run.pipeline")  # loads torch
        return train(config, resume=resume)


def _split(named: str | None, overrides: list[str]) -> tuple[str | None, list[str]]:
    """Return the name of the config and the overrides; the first of them may stand in its place."""
    if named is not None and "=" in named and not Path(named).exists():
        return None, [named, *overrides]
    return named, overrides


def read_config(named: str | None, overrides: list[str], *, resume: Path | None) -> Config:
    """Load the named config, or else the one of the run that is resumed, in its directory."""
    named, overrides = _split(named, overrides)
    if named is not None:
        return load_config(named, overrides)
    if resume is None:
        raise UserError("name a config file: rollart train examples/quickstart.toml")
    directory = find_run(resume, given=f"--resume {resume}")
    here = f"run.directory={toml_value(str(directory))}"
    return load_config(directory / CONFIG, [here, *overrides])
