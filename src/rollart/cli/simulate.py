"""`rollart simulate`: a run in simulated time, or one of the studies made of such runs."""

import importlib
import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollart.cli.printing import say, say_table
from rollart.cli.simulating import Simulated, Ticker, simulate_run, step_table
from rollart.cli.tables import say_rows
from rollart.config import load_config
from rollart.config.world import world_from
from rollart.errors import StorageError, UserError
from rollart.sim.outages import OutageOptions
from rollart.sim.recorded import compare, load
from rollart.sim.simulator import World

STUDIES = {
    "paper": "rollart.sim.paper.report",
    "scale": "rollart.sim.scale",
    "plan": "rollart.planning.report",
    "beyond": "rollart.sim.beyond",
}
"""Studies by name: modules with `run(*, quick, progress) -> dict`."""


def run(arguments: Namespace) -> int:
    """Simulate a config, a recorded run or a study."""
    if arguments.from_run is not None:
        if arguments.what is not None:
            raise UserError("--from takes the whole run from its log: name no config beside it")
        return _recorded(arguments)
    if arguments.what is None:
        names = ", ".join(STUDIES)
        raise UserError(f"name a config file or one of {names}, or give --from RUN")
    if arguments.what in STUDIES:
        return _study(arguments)
    return _config(arguments)


def _study(arguments: Namespace) -> int:
    name = arguments.what
    given = [
        flag
        for flag, value in (
            ("--steps", arguments.steps),
            ("--seed", arguments.seed),
            ("--engine-mtbf", arguments.engine_mtbf),
            (" ".join(arguments.overrides), arguments.overrides or None),
        )
        if value is not None
    ]
    if given:
        raise UserError(f"{given[0]}: the study {name!r} sets its own; it takes --quick")
    out = _out(arguments, name)
    with Ticker(f"simulating {name}") as ticker:
        study: Callable[..., Mapping[str, Any]] = importlib.import_module(STUDIES[name]).run
        result = study(quick=arguments.quick, progress=ticker.say)
    _write(out / "summary.json", result)
    if arguments.json:
        say(json.dumps(result))
    else:
        say_result(result)
    return 0


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
    config = load_config(arguments.what, overrides)
    out = _out(arguments, config.run.name)
    with Ticker(f"simulating {config.run.name}", steps=config.run.steps) as ticker:
        world = _with_outages(world_from(config), arguments.engine_mtbf)
        simulated = simulate_run(world, out=out, ticker=ticker)
    return _show(arguments, simulated, out)


def _with_outages(world: World, mtbf_s: float | None) -> World:
    if mtbf_s is None:
        return world
    return replace(world, outages=OutageOptions(mtbf_s=mtbf_s, seed=world.rules.seed))


def _show(arguments: Namespace, simulated: Simulated, out: Path) -> int:
    summary = simulated.summary
    _write(out / "summary.json", summary)
    if arguments.json:
        say(json.dumps(summary))
        return 0
    say_rows(step_table(simulated.rows))
    say()
    say_table({name: value for name, value in summary.items() if name != "steps"})
    say(f"\nwritten to {out}: utilisation.png, trace.json, events.jsonl, summary.json")
    return 0


def _recorded(arguments: Namespace) -> int:
    directory = Path(arguments.from_run)
    if not directory.is_dir():
        raise UserError(f"--from {directory}: no such directory; name a run, e.g. runs/quickstart")
    out = _out(arguments, directory.name)
    world = load(directory, seed=arguments.seed)
    with Ticker(f"simulating {directory.name}", steps=world.rules.steps) as ticker:
        simulated = simulate_run(world, out=out, ticker=ticker)
        ticker.say("comparing with what was measured")
        result = compare(directory)
    _write(out / "summary.json", result)
    if arguments.json:
        say(json.dumps(result))
        return 0
    say_rows(step_table(simulated.rows))
    say()
    say_result(result)
    return 0


def _out(arguments: Namespace, name: str) -> Path:
    """Return the directory for what is written, made before anything takes time."""
    path = Path(arguments.out) if arguments.out else Path("runs") / f"simulate-{name}"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"--out {path}: cannot be written: {error.strerror}") from error
    return path


def _write(path: Path, value: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error}") from error
