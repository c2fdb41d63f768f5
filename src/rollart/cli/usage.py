"""Usage: the help of `rollart` itself, and how a wrong command line is reported."""

import argparse
import re
from difflib import get_close_matches
from typing import NoReturn

from rollart.cli.printing import BOLD, paint
from rollart.errors import UserError

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
