"""`rollart env try`: an environment played without a model."""

import sys
import textwrap
from argparse import ArgumentParser, Namespace
from asyncio import CancelledError
from collections.abc import Mapping
from pathlib import Path

from rollart.cli.output import BOLD, DIM, counted, note, paint, say
from rollart.cli.parser import Parser
from rollart.config import parse_override
from rollart.envs.registry import make_env
from rollart.envs.trial import (
    BaselinePlayer,
    NoisyPlayer,
    Play,
    RandomPlayer,
    Watch,
    play,
    run_watched,
)
from rollart.errors import ConfigError, EnvError, UserError, describe_error
from rollart.ports import Env
from rollart.types import Json

_LIMIT_S = 30.0
"""Longest a call may take, as in training unless tasks.NAME.step_timeout_s says otherwise."""


def add_env(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Work with environments."
    actions = parser.add_subparsers(
        dest="action", required=True, parser_class=Parser, metavar="try"
    )
    about = "Play an environment without a model, and check that it follows the Env protocol."
    attempt = actions.add_parser("try", description=about, help=about)
    shipped = (
        "frozen_lake, calculator, number_guess, "
        "or your own as module:Class or path/to/file.py:Class"
    )
    attempt.add_argument("name", metavar="NAME", help=shipped)
    attempt.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed the first episode with N (default 0)"
    )
    attempt.add_argument(
        "--episodes", type=int, default=1, metavar="N", help="play N episodes (default 1)"
    )
    attempt.add_argument(
        "--max-turns",
        type=int,
        default=20,
        metavar="N",
        help="end an episode after N turns (default 20)",
    )
    attempt.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set an option of the environment",
    )
    attempt.add_argument(
        "--player",
        choices=("random", "scripted"),
        default="random",
        help="act at random (default), or as the environment's suggest() says",
    )


def run_env(arguments: Namespace) -> int:
    """Play episodes, show each turn, sum up."""
    sys.path.insert(0, str(Path.cwd()))
    for name in ("episodes", "max_turns"):
        if (value := getattr(arguments, name)) < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    options = dict(_option(each) for each in arguments.option)
    player = RandomPlayer() if arguments.player == "random" else NoisyPlayer(noise=0.0)
    plays: list[Play] = []
    left_open: set[str] = set()
    for seed in range(arguments.seed, arguments.seed + arguments.episodes):
        watch = Watch(reset_s=_LIMIT_S, step_s=_LIMIT_S)
        plays.append(_play(arguments, options, player, seed=seed, watch=watch))
        left_open |= {watch.left_open} - {""}
    count = len(plays)
    say(
        f"{paint(arguments.name, BOLD)}: {counted(count, 'episode')} "
        f"by the {arguments.player} player, "
        f"success {sum(each.success for each in plays) / count:.1%}, "
        f"reward {sum(sum(each.rewards) for each in plays) / count:.3f}, "
        f"{sum(len(each.actions) for each in plays) / count:.1f} turns"
    )
    for reason in sorted(left_open):
        note(f"{arguments.name}: {reason}; what was played counts, in training too")
    return 0


def _option(text: str) -> tuple[str, Json]:
    if "=" not in text:
        raise UserError(f"--option {text}: write it as --option NAME=VALUE")
    return parse_override(text)


def _play(
    arguments: Namespace,
    options: Mapping[str, Json],
    player: BaselinePlayer,
    *,
    seed: int,
    watch: Watch,
) -> Play:
    def make() -> Env:
        return make_env(arguments.name, options=options)

    async def episode(env: Env) -> Play:
        return await play(env, player, seed=seed, max_turns=arguments.max_turns, watch=watch)

    try:
        result = run_watched(watch, make, episode)
    except EnvError as error:
        raise UserError(f"{arguments.name} does not follow the Env protocol: {error}") from error
    except ConfigError as error:
        raise UserError(_as_typed(error)) from error
    except UserError:
        raise
    except (Exception, SystemExit, CancelledError) as error:
        raise UserError(
            f"{arguments.name} raised {describe_error(error)}\n"
            "set ROLLART_DEBUG=1 to see where; in training the attempt would be retried"
        ) from error
    if arguments.episodes <= 10:
        _show(result, seed)
    return result


def _as_typed(error: ConfigError) -> str:
    """Return an error of a config in the words of this command."""
    option = error.field.removeprefix("env.options.")
    if error.field == "env.name":
        return f"{error.value}: {error.fix}"
    if error.field == "env.options":
        return f"--option: {error.fix}"
    if error.value is None:
        return f"--option {option}=VALUE: {error.fix}"
    return f"--option {option}={error.value}: {error.fix}"


def _show(result: Play, seed: int) -> None:
    say(paint(f"episode with seed {seed}", BOLD))
    for turn, action in enumerate(result.actions):
        say(textwrap.indent(result.observations[turn], "    "))
        say(f"{paint('>', DIM)} {action}   {paint(f'reward {result.rewards[turn]:g}', DIM)}")
    say(textwrap.indent(result.observations[-1], "    "))
    say(f"{result.stop}, {'success' if result.success else 'no success'}\n")
