"""`rollart simulate`: a run in simulated time, or one of the studies made of such runs.

`Ticker` shows how far a simulation is; the studies come with the source checkout.
"""

import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.status import Status

from rollart.cli.output import note, say, say_rows, say_table
from rollart.cli.parser import add_overrides
from rollart.config import load_config
from rollart.errors import StorageError, UserError
from rollart.events import Command, Event, StepFinished
from rollart.observe.run_directory import LOG, check_free, claim_directory
from rollart.pipelines.simulation import PLOT, TRACE, Simulated, simulate_run
from rollart.planning.from_config import world_from
from rollart.plugins import load_checkout
from rollart.sim.from_config import change_by
from rollart.sim.outcome import StepRow
from rollart.sim.recorded import ask, compare, load
from rollart.sim.simulator import Observer, Simulator

_LOOK_EVERY = 64
"""Events of the scheduler between two looks at the clock."""
_REFRESH_S = 0.25
_PLAIN_S = 5.0
"""Least time between two plain lines."""


class Ticker:
    """Says how far things are: one line that changes on a terminal, plain lines elsewhere.

    Plain lines come at most every few seconds, each with the time since the start, so that what is
    over quickly says nothing.
    """

    def __init__(self, title: str, *, steps: int = 0) -> None:
        self._title = title
        self._steps = steps
        console = Console(file=sys.stderr, highlight=False)
        self._status: Status | None = (
            console.status(title, spinner="dots") if console.is_terminal else None
        )
        self._began = self._shown = self._printed = time.monotonic()
        self._simulator: Simulator | None = None
        self._attached = self._began
        self._seen = 0
        self._step = 0

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()
        if kind is None and time.monotonic() - self._began >= _PLAIN_S:
            self._print("done")

    @property
    def elapsed_s(self) -> float:
        """Time since it was made."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """Say what is being done."""
        if self._status is not None:
            self._status.update(f"{self._title}, {self.elapsed_s:.0f} s: {text}")
        elif time.monotonic() - self._printed >= _PLAIN_S:
            self._print(text)

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        sys.stderr.write(f"{self._title}, {self.elapsed_s:.0f} s: {text}\n")
        sys.stderr.flush()

    def watch(self, simulator: Simulator) -> Observer:
        """Count this simulator's events from now on."""
        self._simulator = simulator
        self._attached = time.monotonic()
        return self

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Show the simulated step and time now and then."""
        del commands
        assert self._simulator is not None
        self._seen += 1
        if isinstance(event, StepFinished):
            self._step = event.version
        elif self._seen % _LOOK_EVERY:
            return
        moment = time.monotonic()
        if moment - self._shown >= _REFRESH_S:
            self._shown = moment
            speed = self._simulator.actions / (moment - self._attached)
            self.say(f"step {self._step}/{self._steps}, {now:,.0f} s, {speed:,.0f} actions/s")


def readable(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary in words, as a person reads it."""
    wasted: Mapping[str, int] = summary["wasted_tokens"]
    return {
        "mode": summary["mode"],
        "seed": str(summary["seed"]),
        "seconds a step": summary["step_s"],
        "of them waiting for rollout": summary["wait_s"],
        "of them training": summary["train_s"],
        "trained tokens a second": summary["tokens_per_s"],
        "largest staleness": summary["staleness"],
        **{f"{pool} busy": f"{share:.0%}" for pool, share in summary["utilisation"].items()},
        "rewards busy": f"{summary['reward_utilisation']:.0%}",
        "engine failures": summary["engine_failures"],
        "sampled tokens": summary["sampled_tokens"],
        "wasted tokens": ", ".join(f"{n:,} {cause}" for cause, n in wasted.items()) or "none",
        "simulated seconds": summary["seconds"],
        "events of the scheduler": summary["events"],
        "actions on the loop": summary["actions"],
    }


def step_table(rows: Sequence[StepRow], *, has_tokens: bool = True) -> list[dict[str, Any]]:
    """Return the rows as a table shows them; a log alone does not have all tokens trained."""
    return [
        {
            "step": row.step,
            "step s": row.step_s,
            "wait s": row.wait_s,
            "train s": row.train_s,
            **({"tokens/s": row.tokens_per_s} if has_tokens else {}),
            "staleness": row.staleness,
            **{f"{pool} busy": f"{share:.0%}" for pool, share in row.utilisation.items()},
            "wasted tokens": row.wasted,
        }
        for row in rows
    ]


STUDIES = {
    "paper": "studies.paper.report",
    "scale": "studies.scale",
    "plan": "studies.planner",
    "beyond": "studies.beyond",
}
"""Studies by name: modules with `run(*, quick, progress, seed) -> dict`."""
PARALLEL = ("paper", "beyond")
"""Studies whose runs may be made in several processes: `run` takes `jobs` too."""
SUMMARY = "summary.json"
FILES = ", ".join((PLOT, TRACE, LOG, SUMMARY))


def add_simulate(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Simulate a run: the scheduler of a live run, on hardware that a config describes. Prints "
        "a table; writes a plot of utilisation, a timeline for Perfetto, the event log and a "
        "summary. The studies: paper (the published results), scale (64 to 10,000 GPUs), plan (the "
        "planner against the paper's split), beyond (rules the paper leaves open)."
    )
    what = "a TOML file with [pools], or a study: paper, scale, plan, beyond"
    parser.add_argument("what", nargs="?", metavar="CONFIG|STUDY", help=what)
    add_overrides(parser)
    parser.add_argument(
        "--from",
        dest="from_run",
        metavar="RUN",
        help="simulate a recorded run from its log, as it was or with changes (run.mode=sync …)",
    )
    parser.add_argument("--out", metavar="DIR", help="write to DIR (default: runs/simulate-NAME)")
    parser.add_argument("--steps", type=int, metavar="N", help="simulate N optimizer steps")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed the run with N; a study with N, N + 1 …"
    )
    mtbf = "let each engine fail for a minute, on average every S seconds"
    parser.add_argument("--engine-mtbf", type=float, metavar="S", help=mtbf)
    parser.add_argument(
        "--quick", action="store_true", help="simulate less; the figures are less exact"
    )
    jobs = "run the study paper or beyond in N processes (default: one per core)"
    parser.add_argument("--jobs", type=int, metavar="N", help=jobs)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )


def run_simulate(arguments: Namespace) -> int:
    """Simulate a config, a recorded run or a study."""
    mtbf_s = arguments.engine_mtbf
    if mtbf_s is not None and not 0 <= mtbf_s < inf:
        raise UserError(
            f"--engine-mtbf {mtbf_s:g}: must be at least 0 seconds (0: engines never fail)"
        )
    if arguments.from_run is not None:
        if "=" in (arguments.what or ""):
            arguments.overrides.insert(0, arguments.what)
            arguments.what = None
        if arguments.what is not None:
            raise UserError("--from reads everything from the run's log: leave out the config file")
        return _recorded(arguments)
    if arguments.what is None:
        names = ", ".join(STUDIES)
        raise UserError(f"name a config file or one of {names}, or give --from RUN")
    if arguments.what in STUDIES:
        return _study(arguments)
    if not Path(arguments.what).suffix and not Path(arguments.what).exists():
        raise UserError(_no_such(arguments.what))
    return _config(arguments)


def _no_such(name: str) -> str:
    near = get_close_matches(name, STUDIES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"{name}: no such config file or study{hint} The studies are {', '.join(STUDIES)}"


def _given(arguments: Namespace, *names: str) -> str | None:
    """Return the first of some flags that was given."""
    flags = {name: getattr(arguments, name.strip("-").replace("-", "_")) for name in names}
    given = [name for name, value in flags.items() if value is not None and value is not False]
    return given[0] if given else None


def _study(arguments: Namespace) -> int:
    name = arguments.what
    given = _given(arguments, "--steps", "--engine-mtbf")
    given = given or " ".join(arguments.overrides) or None
    if given is not None:
        fix = f"the study {name!r} sets its own; it takes --quick and --seed"
        raise UserError(f"{given}: {fix}")
    if arguments.seed is not None and arguments.seed < 0:
        raise UserError(f"--seed {arguments.seed}: must be at least 0")
    jobs = _jobs(arguments)
    out = _out(arguments, name)
    with Ticker(f"simulating {name}") as ticker:
        study: Callable[..., Mapping[str, Any]] = load_checkout(STUDIES[name]).run
        result = study(quick=arguments.quick, progress=ticker.say, seed=arguments.seed, **jobs)
    _write(out / SUMMARY, result)
    if arguments.json:
        say(json.dumps(result))
    else:
        say_result(result)
        say(f"\nwritten to {out / SUMMARY}")
    return 0


def _jobs(arguments: Namespace) -> dict[str, int]:
    """Return how many processes a study may have, if it can use several."""
    jobs, name = arguments.jobs, arguments.what
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs {jobs}: must be at least 1")
    if name in PARALLEL:
        return {"jobs": jobs or os.cpu_count() or 1}
    if jobs is not None:
        raise UserError(f"--jobs: the study {name!r} measures time and runs in one process")
    return {}


def say_result(result: Mapping[str, Any]) -> None:
    """Write a study's figures: its lists of objects as tables, then the rest."""
    rest: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            rows: Sequence[Mapping[str, Any]] = value  # pyright: ignore[reportUnknownVariableType]
            say_rows(rows)
            say()
        else:
            rest[name] = value
    say_table(rest)


def _config(arguments: Namespace) -> int:
    overrides = list(arguments.overrides)
    if arguments.steps is not None:
        overrides.append(f"run.steps={arguments.steps}")
    elif arguments.quick:
        overrides.append("run.steps=3")
    if arguments.seed is not None:
        overrides.append(f"run.seed={arguments.seed}")
    if arguments.engine_mtbf is not None:
        overrides.append(f"simulation.engine_mtbf_s={arguments.engine_mtbf}")
    if arguments.jobs is not None:
        raise UserError("--jobs: only the studies paper and beyond use several processes")
    config = load_config(arguments.what, overrides)
    world = world_from(config)
    out = _out(arguments, config.run.name)
    with Ticker(f"simulating {config.run.name}", steps=config.run.steps) as ticker:
        simulated = simulate_run(world, out=out, watch=ticker.watch)
    return _show(arguments, simulated, out)


def _show(arguments: Namespace, simulated: Simulated, out: Path) -> int:
    summary = simulated.summary
    _write(out / SUMMARY, summary)
    if arguments.json:
        say(json.dumps(summary))
        return 0
    say_rows(step_table(simulated.rows))
    say()
    say_table(readable(summary))
    say(f"\nwritten to {out}: {FILES}")
    return 0


def _recorded(arguments: Namespace) -> int:
    directory = Path(arguments.from_run)
    if not directory.is_dir():
        raise UserError(f"--from {directory}: no such directory; name a run, e.g. runs/quickstart")
    given = _given(arguments, "--steps", "--quick", "--engine-mtbf", "--jobs")
    if given is not None:
        fix = "--from simulates the run as its log has it; it takes --seed, or key=value"
        raise UserError(f"{given}: {fix}")
    overrides = arguments.overrides
    if overrides and arguments.seed is not None:
        fix = "simulates another run, key=value changes the recorded one: use only one of them"
        raise UserError(f"--seed {arguments.seed}: {fix}")
    change = change_by(overrides)
    world = load(directory, seed=arguments.seed, change=change)
    out = _out(arguments, directory.resolve().name, beside=directory)
    with Ticker(f"simulating {directory.name}", steps=world.rules.steps) as ticker:
        simulated = simulate_run(world, out=out, watch=ticker.watch)
        ticker.say("comparing with what was measured")
        result = ask(directory, change=change) if overrides else compare(directory)
    _write(out / SUMMARY, result)
    if arguments.json:
        say(json.dumps(result))
        return 0
    say_rows(step_table(simulated.rows, has_tokens=False))
    say()
    say_result(_labelled(result))
    say(f"\nwritten to {out}: {FILES}")
    return 0


def _labelled(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a comparison with words for its ratio, if it has one."""
    shown = dict(result)
    if "ratio" in shown:
        ratio = shown.pop("ratio")
        words = "as fast" if ratio == 1 else "faster" if ratio < 1 else "slower"
        shown["step_s of what_if / simulated"] = f"{ratio:.4g} ({words}; below 1 is faster)"
    return shown


def _out(arguments: Namespace, name: str, *, beside: Path | None = None) -> Path:
    """Return the directory for what is written, made before anything takes time."""
    path = Path(arguments.out) if arguments.out else Path("runs") / f"simulate-{name}"
    if beside is not None and path.resolve() == beside.resolve():
        raise UserError(f"--out {path}: is the run that --from reads; name another directory")
    check_free(path)
    moved = claim_directory(path, mark=SUMMARY)
    if moved is not None:
        note(f"the earlier run there was moved to {moved}")
    return path


def _write(path: Path, value: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error}") from error
