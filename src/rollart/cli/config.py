"""`rollart config`: see, check and understand a config."""

from argparse import Namespace

from rollart.cli.dry_run import describe_run
from rollart.cli.output import GREEN, paint, say
from rollart.config import add_import_paths, check_names, dump_toml, explain, load_config


def run(arguments: Namespace) -> int:
    """Show, check or explain."""
    match arguments.action:
        case "show":
            config = load_config(arguments.config, arguments.overrides)
            say(dump_toml(config, changed=arguments.changed).rstrip())
        case "check":
            _check(arguments)
        case _:
            named = arguments.config
            say(explain(arguments.key, None if named is None else load_config(named)))
    return 0


def _check(arguments: Namespace) -> None:
    config = load_config(arguments.config, arguments.overrides)
    add_import_paths(config)
    check_names(config)
    say(f"{paint('valid:', GREEN)} {arguments.config}\n")
    say(describe_run(config, resume=None))
