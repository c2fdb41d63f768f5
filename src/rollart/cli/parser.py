"""Arguments: what each command takes. Imports nothing of the program, so help is instant.

Usage: the help of `rollart` itself, and how a wrong command line is reported.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from rollart import __version__
from rollart.cli.output import BOLD, paint
from rollart.errors import UserError

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # pyright: ignore[reportPrivateUsage]


_HELP = """\
{usage}: rollart COMMAND ...

Train language-model agents with reinforcement learning, on a laptop or a cluster.

{start}
  rollart doctor                              what this machine can run
  rollart train examples/quickstart.toml      train an agent; files go to runs/quickstart/
  rollart eval runs/quickstart                play held-out episodes with the result

{commands}
  train CONFIG [key=value ...]     train; --resume DIR goes on, --dry-run only shows the plan
  eval RUN_OR_CHECKPOINT           measure success on held-out episodes
  replay RUN                       re-feed a run's log; check that every trajectory ended once
  config show|check|explain        see, check and understand a config
  env try NAME                     play an environment without a model
  pools CONFIG|RUN                 the hardware, who prefers what, where workers are or were
  plan CONFIG [key=value ...]      find out which GPUs should train and which roll out
  simulate CONFIG|paper|scale|...  a run in simulated time on hardware you do not have
  function serve|package           a reward function over HTTP, or packed for AWS Lambda
  bench [NAME]                     run a benchmark; without a name, list them
  doctor                           what this machine can run, and why not

{options}
  -h, --help                       this text; after a command, its own help
  --version                        the version

Errors you can fix are one line and exit code 2. ROLLART_DEBUG=1 shows tracebacks.
"""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports mistakes as the rest of the program does."""

    def error(self, message: str) -> NoReturn:
        """Report a wrong command line."""
        message = message.replace(", key=value", "")  # there may be none of them
        raise UserError(f"{message}{_guess(message)}\ntry: {self.prog} --help")


class TopParser(Parser):
    """The parser of `rollart` itself, with its own help text."""

    def format_help(self) -> str:
        """Return the help text."""
        words = {"usage": "usage", "start": "start", "commands": "commands", "options": "options"}
        return _HELP.format(**{name: paint(word, BOLD) for name, word in words.items()})


def _guess(message: str) -> str:
    """Return which of the choices was meant, where argparse names a wrong one and the choices."""
    if found := re.search(r"invalid choice: '(.+?)' \(choose from (.+)\)", message):
        near = get_close_matches(found[1], re.findall(r"[\w-]+", found[2]), n=1)
        return f"; did you mean {near[0]}?" if near else ""
    return ""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `key=value` may stand anywhere after the command."""
    parser = _build()
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


def _unknown(arguments: argparse.Namespace, argument: str) -> str:
    """Say that a command takes no such argument, and where its help is."""
    words = ["rollart", arguments.command, getattr(arguments, "action", "")]
    command = " ".join(filter(None, words))
    takes_options = hasattr(arguments, "option") and "=" in argument and argument[0] != "-"
    fix = f"; write --option {argument}" if takes_options else ""
    return f"unknown argument {argument!r}{fix}\ntry: {command} --help"


def _build() -> argparse.ArgumentParser:
    parser = TopParser(prog="rollart")
    parser.add_argument("--version", action="version", version=f"rollart {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, parser_class=Parser, metavar="COMMAND"
    )
    _add_train(commands)
    _add_eval(commands)
    _add_replay(commands)
    _add_config(commands)
    _add_env(commands)
    _add_pools(commands)
    _add_plan(commands)
    _add_simulate(commands)
    _add_function(commands)
    _add_bench(commands)
    about = "Say what this machine can run, and why not."
    doctor = commands.add_parser("doctor", description=about)
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(module="doctor")
    return parser


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="change a key, e.g. run.steps=50"
    )


def _add_train(commands: "Commands") -> None:
    train = commands.add_parser("train", description="Train an agent as a config file says.")
    train.add_argument("config", nargs="?", metavar="CONFIG", help="a TOML file, see examples/")
    _add_overrides(train)
    resume = (
        "go on from the run or checkpoint in this directory; with CONFIG, in CONFIG's directory, "
        "and this one stays as it is"
    )
    train.add_argument("--resume", metavar="DIR", help=resume)
    train.add_argument("--dry-run", action="store_true", help="show the plan, train nothing")
    train.add_argument(
        "--address",
        metavar="ADDR",
        help='run on Ray: "local" for one on this machine, "auto" or HOST:PORT to join a cluster',
    )
    train.set_defaults(module="train")


def _add_eval(commands: "Commands") -> None:
    about = "Measure a trained model on held-out episodes."
    evaluate = commands.add_parser("eval", description=about)
    evaluate.add_argument("path", metavar="RUN_OR_CHECKPOINT", help="a run or a checkpoint in it")
    _add_overrides(evaluate)
    evaluate.add_argument("--episodes", type=int, help="how many (default: the config's)")
    evaluate.add_argument("--temperature", type=float, help="of the draws; 0 is greedy")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    evaluate.set_defaults(module="evaluate")


def _add_replay(commands: "Commands") -> None:
    about = (
        "Re-feed a run's event log to the scheduler and check that it gives the same commands, "
        "that every trajectory ended exactly once and that the staleness bound was kept."
    )
    replay = commands.add_parser("replay", description=about)
    replay.add_argument("directory", metavar="RUN", help="a run's directory")
    replay.add_argument("--trace", metavar="FILE", help="also write a timeline for Perfetto")
    replay.add_argument("--json", action="store_true", help="print one JSON object")
    replay.set_defaults(module="replay")


def _add_config(commands: "Commands") -> None:
    config = commands.add_parser("config", description="See, check and understand a config.")
    actions = config.add_subparsers(
        dest="action", required=True, parser_class=Parser, metavar="show|check|explain"
    )
    for name, about in (
        ("show", "Print the complete config, defaults and overrides included, as TOML."),
        ("check", "Say whether a config is valid and its environments exist."),
    ):
        action = actions.add_parser(name, description=about, help=about)
        action.add_argument("config", metavar="CONFIG", help="a TOML file")
        _add_overrides(action)
        if name == "show":
            help_text = "only what differs from the defaults"
            action.add_argument("--changed", action="store_true", help=help_text)
    about = "Say what a key or a section means."
    explain = actions.add_parser("explain", description=about, help=about)
    explain.add_argument("key", nargs="?", default="", help="e.g. staleness.alpha; empty: all")
    explain.add_argument("--config", metavar="FILE", help="also show the key's value in this file")
    config.set_defaults(module="config")


def _add_env(commands: "Commands") -> None:
    env = commands.add_parser("env", description="Work with environments.")
    actions = env.add_subparsers(dest="action", required=True, parser_class=Parser, metavar="try")
    about = "Play an environment without a model, and check that it keeps the contract."
    attempt = actions.add_parser("try", description=about, help=about)
    shipped = (
        "frozen_lake, calculator, number_guess; or your own: module:Class, path/to/file.py:Class"
    )
    attempt.add_argument("name", metavar="NAME", help=shipped)
    attempt.add_argument("--seed", type=int, default=0, help="of the first episode (default 0)")
    attempt.add_argument("--episodes", type=int, default=1, help="how many (default 1)")
    attempt.add_argument("--max-turns", type=int, default=20, help="per episode (default 20)")
    attempt.add_argument(
        "--option", action="append", default=[], metavar="k=v", help="an option of the class"
    )
    attempt.add_argument(
        "--player",
        choices=("random", "scripted"),
        default="random",
        help="random (default), or scripted: takes the environment's own suggestions",
    )
    env.set_defaults(module="env")


def _add_pools(commands: "Commands") -> None:
    about = (
        "Show the pools of a config, which of them each phase and task domain prefers and where "
        "workers would be; or, of a run on a cluster, where each worker was and when."
    )
    pools = commands.add_parser("pools", description=about)
    pools.add_argument("what", metavar="CONFIG|RUN", help="a TOML file, or a run's directory")
    pools.add_argument("--address", metavar="ADDR", help="the Ray cluster to look at")
    _add_overrides(pools)
    pools.set_defaults(module="pools")


def _add_plan(commands: "Commands") -> None:
    about = (
        "Find, by simulation, which GPUs of [pools] should train, which roll out and for which "
        "tasks; print the plan and write a config that has it."
    )
    plan = commands.add_parser("plan", description=about)
    plan.add_argument("config", metavar="CONFIG", help="a TOML file with [pools] and profiles")
    _add_overrides(plan)
    plan.add_argument(
        "--objective",
        choices=("throughput", "cost"),
        default="throughput",
        help="the shortest step (default), or the cheapest: GPUs may stay unused",
    )
    plan.add_argument(
        "--alpha",
        choices=("keep", "auto"),
        default="keep",
        help="keep the config's alpha (default), or choose from 1 to it",
    )
    plan.add_argument(
        "--environments", type=int, metavar="N", help="most there can be (default: no limit)"
    )
    plan.add_argument(
        "--no-split",
        action="store_true",
        help="leave prefill and decode together, as the torch engine has them",
    )
    plan.add_argument("--explain", action="store_true", help="say why, in sentences")
    plan.add_argument("--out", metavar="FILE", help="write the config here")
    plan.add_argument("--json", action="store_true", help="last line is one JSON object")
    plan.set_defaults(module="plan")


def _add_simulate(commands: "Commands") -> None:
    about = (
        "Simulate a run: the scheduler that runs live, on hardware described in a config. Prints "
        "a table; writes a plot of use, a timeline for Perfetto, the event log and a summary. "
        "The studies: paper (the published results), scale (64 to 10,000 GPUs), plan (the "
        "planner against the paper's split), beyond (rules the paper leaves open)."
    )
    simulate = commands.add_parser("simulate", description=about)
    what = "a TOML file with [pools], or a study: paper, scale, plan, beyond"
    simulate.add_argument("what", nargs="?", metavar="CONFIG|STUDY", help=what)
    _add_overrides(simulate)
    simulate.add_argument(
        "--from",
        dest="from_run",
        metavar="RUN",
        help="simulate a live run from its own log, or by another schedule (run.mode=sync …)",
    )
    simulate.add_argument("--out", metavar="DIR", help="default runs/simulate-NAME")
    simulate.add_argument("--steps", type=int, metavar="N", help="optimizer steps")
    simulate.add_argument("--seed", type=int, metavar="N", help="of the run")
    mtbf = "let each engine die after so many seconds on average, for a minute"
    simulate.add_argument("--engine-mtbf", type=float, metavar="S", help=mtbf)
    simulate.add_argument("--quick", action="store_true", help="shorter, figures less exact")
    jobs = "processes of the studies paper and beyond (default: one a core)"
    simulate.add_argument("--jobs", type=int, metavar="N", help=jobs)
    simulate.add_argument("--json", action="store_true", help="last line is one JSON object")
    simulate.set_defaults(module="simulate")


def _add_function(commands: "Commands") -> None:
    function = commands.add_parser("function", description="Run reward functions elsewhere.")
    actions = function.add_subparsers(
        dest="action", required=True, parser_class=Parser, metavar="serve|package"
    )
    about = "Serve reward functions over HTTP, as function platforms want it."
    serve = actions.add_parser("serve", description=about, help=about)
    serve.add_argument("--host", default="127.0.0.1", help="address to serve on (this machine's)")
    serve.add_argument("--port", type=int, help="0: any free one (default: PORT, else 8080)")
    serve.add_argument("--token", default="", help="default: ROLLART_FUNCTION_TOKEN, or a new one")
    serve.add_argument("--token-file", metavar="FILE", help="a file that holds the token")
    serve.add_argument("--no-token", action="store_true", help="something in front checks callers")
    serve.add_argument("--instances", type=int, default=0, help="most processes (default: cores)")
    serve.add_argument("--concurrency", type=int, default=1, help="calls a process takes at once")
    serve.add_argument("--timeout-s", type=float, default=60.0, help="of one call (default 60)")
    serve.add_argument("--memory-mib", type=int, default=2048, help="of a process (default 2048)")
    about = "Pack reward functions and what runs them."
    package = actions.add_parser("package", description=about, help=about)
    package.add_argument(
        "--lambda", dest="lambda_zip", metavar="OUT.zip", required=True, help="for AWS Lambda"
    )
    package.add_argument(
        "--include", action="append", default=[], metavar="PATH", help="more content, at the root"
    )
    for action in (serve, package):
        action.add_argument("functions", nargs="+", metavar="FUNCTION", help="module:function")
    function.set_defaults(module="function")


def _add_bench(commands: "Commands") -> None:
    about = "Run a benchmark of the source checkout; without a name, list them."
    bench = commands.add_parser("bench", description=about)
    bench.add_argument("name", nargs="?", metavar="NAME", help="e.g. modes, faults, engine")
    bench.add_argument("--json", action="store_true", help="last line is one JSON object")
    effort = bench.add_mutually_exclusive_group()
    for name, about in (
        ("quick", "the smallest edition, figures less exact"),
        ("full", "repeat more; may take longer than five minutes"),
    ):
        effort.add_argument(
            f"--{name}", dest="effort", action="store_const", const=name, help=about
        )
    bench.set_defaults(module="bench", effort="plain")
