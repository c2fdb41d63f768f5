"""`rollart config`: see, check and understand a config."""

from argparse import ArgumentParser, Namespace

from rollart.cli.dry_run import describe_run
from rollart.cli.output import GREEN, paint, say
from rollart.cli.parser import Parser, add_overrides
from rollart.config import add_import_paths, check_names, dump_toml, explain, load_config

ABOUT = "See, check and understand a config."


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    actions = parser.add_subparsers(
        dest="action", required=True, parser_class=Parser, metavar="show|check|explain"
    )
    for name, about in (
        ("show", "Print the complete config, defaults and overrides included, as TOML."),
        ("check", "Say whether a config is valid and its environments exist."),
    ):
        action = actions.add_parser(name, description=about, help=about)
        action.add_argument("config", metavar="CONFIG", help="a TOML file")
        add_overrides(action)
        if name == "show":
            help_text = "only what differs from the defaults"
            action.add_argument("--changed", action="store_true", help=help_text)
    about = "Say what a key or a section means."
    meaning = actions.add_parser("explain", description=about, help=about)
    meaning.add_argument("key", nargs="?", default="", help="e.g. staleness.alpha; empty: all")
    meaning.add_argument("--config", metavar="FILE", help="also show the key's value in this file")


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
