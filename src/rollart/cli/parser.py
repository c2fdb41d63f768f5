"""The parser of the command line, its help page, and how a wrong command line is reported.

A command NAME is declared and run by one module of this package: `add_NAME(parser)` declares its
arguments, `run_NAME(arguments)` runs it. Only the module of the command that was typed is imported,
so that `rollart --help` and a mistyped command answer at once, whatever the commands import. An
installed package adds a command by an entry point of the group `rollart.commands`: its name is the
command, its value the module.
"""

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import ModuleType
from typing import NoReturn

from rollart import __version__
from rollart.cli.output import BOLD, paint
from rollart.errors import UserError
from rollart.plugins import COMMAND_PACKAGE, added_commands


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInfo:
    """A command as the help page shows it.

    Example:
        >>> COMMANDS["eval"].usage
        'eval RUN_OR_CHECKPOINT'

    """

    usage: str
    """The command and what follows it."""
    summary: str
    """What it does, in a few words."""
    module: str
    """The module that declares its arguments and runs it, in this package unless it has a dot."""


def _info(usage: str, summary: str, module: str = "") -> CommandInfo:
    name = usage.partition(" ")[0]
    return CommandInfo(usage=usage, summary=summary, module=module or name)


COMMANDS: Mapping[str, CommandInfo] = {
    info.usage.partition(" ")[0]: info
    for info in (
        _info("train CONFIG [key=value ...]", "train an agent; --resume DIR continues a run"),
        _info("eval RUN_OR_CHECKPOINT", "measure success on held-out episodes", "runs"),
        _info("replay RUN", "check from a run's log that every trajectory ended once", "runs"),
        _info("config show|check|explain", "show, check and explain a config"),
        _info("env try NAME", "play an environment without a model"),
        _info("pools CONFIG|RUN", "show the hardware pools and where workers run or ran"),
        _info("plan CONFIG [key=value ...]", "find out which GPUs should train and which roll out"),
        _info("simulate CONFIG|paper|scale|...", "simulate a run on hardware you do not have"),
        _info("function serve|package", "serve a reward function over HTTP, or pack it for Lambda"),
        _info("bench [NAME]", "run a benchmark; without a name, list them"),
        _info("doctor", "show what this machine can run, and why not"),
    )
}
"""Every command by its name, in the order of the help page."""

_HELP = """\
{usage}: rollart COMMAND ...

Train language-model agents with reinforcement learning, on a laptop or a cluster.

{start}
  rollart doctor                              show what this machine can run
  rollart train examples/quickstart.toml      train an agent; files go to runs/quickstart/
  rollart eval runs/quickstart                play held-out episodes with the result

{commands}
{table}

{options}
  -h, --help                       show this help; after a command, its own
  --version                        show the version

An error that you can fix is one message, with exit code 2. Set ROLLART_DEBUG=1 for tracebacks.
"""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports mistakes as the rest of the program does."""

    def error(self, message: str) -> NoReturn:
        """Report a wrong command line."""
        message = message.replace(", key=value", "")  # there may be none of them
        raise UserError(f"{_reword(message)}\ntry: {self.prog} --help")


class TopParser(Parser):
    """The parser of `rollart` itself, with its own help page."""

    def format_help(self) -> str:
        """Return the help page."""
        table = "\n".join(f"  {each.usage:<31}  {each.summary}" for each in all_commands().values())
        words = ("usage", "start", "commands", "options")
        return _HELP.format(table=table, **{word: paint(word, BOLD) for word in words})


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `key=value` may stand anywhere after the command."""
    parser = _build(next((word for word in argv if not word.startswith("-")), ""))
    if not argv:
        sys.stdout.write(parser.format_help())
        raise SystemExit(0)
    arguments, rest = parser.parse_known_args(argv)
    wrong = [each for each in rest if "=" not in each or each.startswith("-")]
    if wrong or (rest and not hasattr(arguments, "overrides")):
        raise UserError(_unknown(arguments, (wrong or rest)[0]))
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


def run_command(arguments: argparse.Namespace) -> int:
    """Run the command that was typed and return its exit code."""
    run: Callable[[argparse.Namespace], int]
    run = getattr(_load(arguments.command), f"run_{arguments.command}")
    return run(arguments)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Let a command take `key=value` overrides of its config."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="override a key of the config, e.g. run.steps=50",
    )


def _build(chosen: str) -> argparse.ArgumentParser:
    """Return the parser; of all commands, the chosen one has its arguments."""
    parser = TopParser(prog="rollart")
    parser.add_argument("--version", action="version", version=f"rollart {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, parser_class=Parser, metavar="COMMAND"
    )
    # Looking for installed packages takes a while: not for a command of our own.
    for name in COMMANDS if chosen in COMMANDS else all_commands():
        command = commands.add_parser(name)
        if name == chosen:
            getattr(_load(name), f"add_{name}")(command)
    return parser


@cache
def all_commands() -> Mapping[str, CommandInfo]:
    """Return every command by its name: those of this package, then those of installed ones."""
    added = {
        name: CommandInfo(usage=f"{name} ...", summary=f"see rollart {name} --help", module=module)
        for name, module in added_commands().items()
    }
    return {**COMMANDS, **{name: info for name, info in added.items() if name not in COMMANDS}}


def _load(name: str) -> ModuleType:
    """Import the module of a command."""
    module = (COMMANDS.get(name) or all_commands()[name]).module
    return importlib.import_module(module if "." in module else f"{COMMAND_PACKAGE}.{module}")


def _reword(message: str) -> str:
    """Return what argparse says about a wrong command line in the words of the other messages."""
    if found := re.fullmatch(
        r"argument (.+?): invalid choice: '(.*)' \(choose from (.+)\)", message
    ):
        name, given, choices = found[1], found[2], re.findall(r"[\w-]+", found[3])
        near = get_close_matches(given, choices, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join(choices)}"
        if name.startswith("-"):
            return f"{name} {given}: must be {' or '.join(choices)}"
        return f"no such {_noun(name)} {given!r}; {hint}"
    if found := re.fullmatch(r"argument (.+?): invalid (int|float) value: '(.*)'", message):
        wanted = "a whole number" if found[2] == "int" else "a number"
        return f"{found[1]} {found[3]}: must be {wanted}"
    if found := re.fullmatch(r"argument (.+?): expected one argument", message):
        return f"{found[1]}: give it a value"
    if found := re.fullmatch(r"the following arguments are required: (.+)", message):
        return f"missing argument: {found[1]}"
    return message


def _noun(name: str) -> str:
    """Return what a positional argument with choices is: the command, or an action of one."""
    return "command" if name == "COMMAND" else "action"


def _unknown(arguments: argparse.Namespace, argument: str) -> str:
    """Say that a command takes no such argument, and where its help is."""
    words = ["rollart", arguments.command, getattr(arguments, "action", "")]
    command = " ".join(filter(None, words))
    takes_options = hasattr(arguments, "option") and "=" in argument and argument[0] != "-"
    fix = f"; write --option {argument}" if takes_options else ""
    return f"unknown argument {argument!r}{fix}\ntry: {command} --help"
