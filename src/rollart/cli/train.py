"""`rollart train`: a config in, a run's directory out."""

import sys
from argparse import Namespace
from pathlib import Path

from rollart.build.going_on import check_resumed
from rollart.cli.dry_run import describe_run, headline
from rollart.cli.printing import say, silence_bars
from rollart.cli.runs import CONFIG, check_saved, find_run
from rollart.config import Config, add_import_paths, check_names, load_config
from rollart.config.fitting import check_places
from rollart.config.writing import toml_value
from rollart.errors import UserError
from rollart.models.files import check_files
from rollart.models.paths import local_model
from rollart.observe.directory import check_writable
from rollart.observe.hold import check_free


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
        from rollart.on_ray.session import check_joinable  # noqa: PLC0415 loads ray

        check_joinable(config.ray.address)
    if resume is None:
        sys.stderr.write(f"{headline(config)}\n")
    from rollart.build.training import train  # noqa: PLC0415 loads torch

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
