"""`rollart train`: a config in, a run's directory out.

The run or checkpoint that a command names: told apart from what is none, before torch loads.
"""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rollart.checkpoints.resume import check_resumed
from rollart.checkpoints.save import STATE, checkpoints, find_checkpoint
from rollart.cli.dry_run import describe_run, headline
from rollart.cli.output import say, silence_bars
from rollart.cli.parser import add_overrides
from rollart.config import Config, add_import_paths, check_names, load_config
from rollart.config.checks import check_places
from rollart.config.writer import toml_value
from rollart.errors import UserError
from rollart.models.files import check_files, local_model
from rollart.observe.run_directory import check_free, check_writable, find_holder

CONFIG = "config.toml"
"""The resolved config in a run's directory."""
CHECKPOINTS = "checkpoints"


def check_saved(path: Path, *, given: str) -> None:
    """Refuse what is no run that has saved something and no checkpoint; `given` is what was typed.

    Whether the checkpoint is whole is another question.
    """
    _check_directory(path, given=given)
    if not any((path / name).exists() for name in (STATE, CONFIG, CHECKPOINTS)):
        raise UserError(
            f"{given}: is no run's directory (it holds neither {CONFIG} nor {CHECKPOINTS}/) and no "
            f"checkpoint (no {STATE}); name one, e.g. runs/quickstart"
        )
    holder = find_holder(path)
    if holder is not None and not checkpoints(path / CHECKPOINTS):
        raise UserError(f"{given}: holds no checkpoint yet; {holder} is at work there: wait for it")
    find_checkpoint(path)


def find_run(path: Path, *, given: str) -> Path:
    """Return the run's directory that a path is, or that a checkpoint's path lies in."""
    _check_directory(path, given=given)
    for directory in (path, *list(path.resolve().parents)[:2]):
        if (directory / CONFIG).is_file():
            return directory
    raise UserError(f"{given}: holds no {CONFIG}, so it is not a run's directory")


def _check_directory(path: Path, *, given: str) -> None:
    name = "name a run's directory, e.g. runs/quickstart, or one of its checkpoints"
    if not path.exists():
        raise UserError(f"{given}: no such directory; {name}")
    if not path.is_dir():
        raise UserError(f"{given}: is a file; {name}")


ABOUT = "Train an agent as a config file says."


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="a TOML file, see examples/")
    add_overrides(parser)
    resume = (
        "go on from the run or checkpoint in this directory; with CONFIG, in CONFIG's directory, "
        "and this one stays as it is"
    )
    parser.add_argument("--resume", metavar="DIR", help=resume)
    parser.add_argument("--dry-run", action="store_true", help="show the plan, train nothing")
    parser.add_argument(
        "--address",
        metavar="ADDR",
        help='run on Ray: "local" for one on this machine, "auto" or HOST:PORT to join a cluster',
    )


def run(arguments: Namespace) -> int:
    """Train, or show what would be trained."""
    resume = None if arguments.resume is None else Path(arguments.resume)
    overrides = list(arguments.overrides)
    if arguments.address is not None:
        overrides.append(f"ray.address={toml_value(arguments.address)}")
    config = read_config(arguments.config, overrides, resume=resume)
    check_free(config.run.path)
    add_import_paths(config)
    check_names(config)
    check_writable(config.run.path)
    # Said again by `train`; said here it need not wait for torch.
    if resume is not None:
        check_saved(resume, given=f"--resume {resume}")
        check_resumed(config, resume)
    if arguments.dry_run:
        say(describe_run(config, resume=resume))
        return 0
    silence_bars()
    if (model := local_model(config.model.path)) is not None:
        check_files(model, named=config.model.path)
    check_places(config)
    if config.ray.address:
        from rollart.cluster.ray_session import check_joinable  # noqa: PLC0415 loads ray

        check_joinable(config.ray.address)
    if resume is None:
        sys.stderr.write(f"{headline(config)}\n")
    from rollart.pipelines.agentic import train  # noqa: PLC0415 loads torch

    return train(config, resume=resume)


def read_config(named: str | None, overrides: list[str], *, resume: Path | None) -> Config:
    """Load the named config, or else the one of the run that is resumed, in its directory."""
    if named is not None and "=" in named and not Path(named).exists():
        named, overrides = None, [named, *overrides]
    if named is not None:
        return load_config(named, overrides)
    if resume is None:
        raise UserError("name a config file: rollart train examples/quickstart.toml")
    directory = find_run(resume, given=f"--resume {resume}")
    here = f"run.directory={toml_value(str(directory))}"
    return load_config(directory / CONFIG, [here, *overrides])
