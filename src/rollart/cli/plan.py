"""`rollart plan`: the hardware there is in, a config that uses it well out."""

import errno
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rollart.cli.output import say
from rollart.cli.parser import add_overrides
from rollart.clock import SystemClock
from rollart.config import Config, dump_toml, load_config
from rollart.config.places import refused_split
from rollart.errors import StorageError
from rollart.planning.from_config import apply, problem_of
from rollart.planning.plan import ANYWHERE
from rollart.planning.search import PlanResult, bottleneck, explain, search, to_json


def add_plan(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Find, by simulation, which GPUs of [pools] should train, which roll out and for which "
        "tasks. Prints the plan; --out also writes a config that has it."
    )
    parser.add_argument("config", metavar="CONFIG", help="a TOML file with [pools] and profiles")
    add_overrides(parser)
    parser.add_argument(
        "--objective",
        choices=("throughput", "cost"),
        default="throughput",
        help="minimize the time of a step (default) or its cost, where GPUs may stay unused",
    )
    parser.add_argument(
        "--alpha",
        choices=("keep", "auto"),
        default="keep",
        help="keep staleness.alpha (default), or choose a value from 1 to it",
    )
    parser.add_argument(
        "--environments",
        type=int,
        metavar="N",
        help="use at most N environments (default: no limit)",
    )
    parser.add_argument(
        "--no-split",
        action="store_true",
        help="do not split prefill from decode (the torch engine cannot)",
    )
    parser.add_argument("--explain", action="store_true", help="explain the plan in sentences")
    parser.add_argument("--out", metavar="FILE", help="write a config with the plan to FILE")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )


def run_plan(arguments: Namespace) -> int:
    """Plan, print the plan and write the config."""
    config = load_config(arguments.config, arguments.overrides)
    if arguments.out is not None:
        _check_writable(Path(arguments.out))
    problem = problem_of(
        config,
        objective=arguments.objective,
        any_alpha=arguments.alpha == "auto",
        most_slots=arguments.environments,
        may_split=not arguments.no_split,
    )
    clock = SystemClock()
    answer = search(problem, progress=lambda message: _progress(message, clock.now()))
    _progress("done", clock.now())
    planned = apply(config, answer.plan)
    if arguments.out is not None:
        _write(Path(arguments.out), planned)
    if arguments.json:
        say(json.dumps(to_json(answer)))
        return 0
    show(answer)
    if arguments.explain:
        say()
        for sentence in explain(answer):
            say(f"- {sentence}")
    refused = refused_split(planned)
    if refused is not None:
        say(f"\n`rollart train` refuses these pools: {refused}")
    if arguments.out is not None:
        say(f"\nwritten: {arguments.out}; look at it with rollart train --dry-run {arguments.out}")
    return 0


def show(answer: PlanResult) -> None:
    """Print an answer as two tables."""
    plan, figures = answer.plan, answer.figures
    pools = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("pool", "gpus", "use", "engines", "serves", "busy"):
        pools.add_column(column, justify="right" if column in ("gpus", "busy") else "left")
    name, gpus = plan.train.name, str(plan.train_gpus)
    pools.add_row(name, gpus, "train", "", "", f"{figures.training:.0%}")
    for share in plan.rollout:
        split = f", {share.prefill}P{share.decode}D" if share.is_split else ""
        tasks = [task for task, pool in plan.serves.items() if pool == share.pool.name]
        free = [task for task, pool in plan.serves.items() if pool == ANYWHERE]
        pools.add_row(
            share.pool.name,
            str(share.gpus),
            "roll out",
            f"{share.engines} of tp {share.tp}{split}",
            ", ".join([*tasks, *(f"({task})" for task in free)]),
            f"{figures.utilisation[share.pool.name]:.0%}",
        )
    for left, count in plan.unused(answer.problem).items():
        pools.add_row(left, str(count), "unused", "", "", "")
    facts = Table(box=None, show_header=False, pad_edge=False)
    unit = "" if plan.train.price else " H20 hours"
    for fact, value in (
        ("step", f"{figures.step_s:.1f} s, {figures.tokens_per_s:,.0f} tokens/s"),
        ("cost of a step", f"{answer.cost:.2f}{unit}"),
        ("bottleneck", bottleneck(answer)),
        ("alpha", str(plan.alpha)),
        ("redundant groups", str(plan.extra_groups)),
        ("environments", str(plan.slots)),
        ("over the best bound", f"{answer.gap:.2f}x"),
    ):
        facts.add_row(fact, value)
    console = Console(file=sys.stdout, highlight=False)
    console.print(pools)
    console.print()
    console.print(facts)


def _progress(message: str, seconds: float) -> None:
    sys.stderr.write(f"planning, {seconds:.0f} s: {message}\n")
    sys.stderr.flush()


def _check_writable(path: Path) -> None:
    """Say before anything takes time that a file cannot be written, and make none."""
    why = None
    if path.is_dir():
        why = os.strerror(errno.EISDIR)
    elif not path.parent.is_dir():
        why = os.strerror(errno.ENOENT if not path.parent.exists() else errno.ENOTDIR)
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = os.strerror(errno.EACCES)
    if why is not None:
        raise StorageError(f"--out {path}: cannot be written: {why}")


def _write(path: Path, config: Config) -> None:
    try:
        path.write_text(dump_toml(config), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"--out {path}: cannot be written: {error.strerror}") from error
