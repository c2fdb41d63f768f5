"""`rollart simulate`: a run in simulated time, or one of the studies made of such runs."""

import importlib
import json
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any

from rollart.cli.printing import note, say, say_table
from rollart.cli.simulating import Simulated, Ticker, readable, simulate_run, step_table
from rollart.cli.tables import say_rows
from rollart.config import load_config
from rollart.config.what_if import change_by
from rollart.config.world import world_from
from rollart.errors import StorageError, UserError
from rollart.observe.directory import claim_directory
from rollart.observe.hold import check_free
from rollart.sim.recorded import ask, compare, load

STUDIES = {
    "paper": "rollart.sim.paper.report",
    "scale": "rollart.sim.scale",
    "plan": "rollart.planning.report",
    "beyond": "rollart.sim.beyond",
}
"""Studies by name: modules with `run(*, quick, progress) -> dict`."""
PARALLEL = ("paper", "beyond")
"""Studies whose runs may be made in several processes: `run` takes `jobs` too."""
SUMMARY = "summary.json"
FILES = f"utilisation.png, trace.json, events.jsonl, {SUMMARY}"


def run(arguments: Namespace) -> int:
    """Simulate a config, a recorded run or a study."""
    mtbf_s = arguments.engine_mtbf
    if mtbf_s is not None and not 0 <= mtbf_s < inf:
        raise UserError(f"--engine-mtbf {mtbf_s:g}: must be at least 0 seconds; 0 is never")
    if arguments.from_run is not None:
        if "=" in (arguments.what or ""):
            arguments.overrides.insert(0, arguments.what)
            arguments.what = None
        if arguments.what is not None:
            raise UserError("--from takes the whole run from its log: name no config beside it")
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
    given = _given(arguments, "--steps", "--seed", "--engine-mtbf")
    given = given or " ".join(arguments.overrides) or None
    if given is not None:
        raise UserError(f"{given}: the study {name!r} sets its own; it takes --quick")
    jobs = _jobs(arguments)
    out = _out(arguments, name)
    with Ticker(f"simulating {name}") as ticker:
        study: Callable[..., Mapping[str, Any]] = importlib.import_module(STUDIES[name]).run
        result = study(quick=arguments.quick, progress=ticker.say, **jobs)
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
        raise UserError("--jobs: one run is one process; the studies paper and beyond take it")
    config = load_config(arguments.what, overrides)
    world = world_from(config)
    out = _out(arguments, config.run.name)
    with Ticker(f"simulating {config.run.name}", steps=config.run.steps) as ticker:
        simulated = simulate_run(world, out=out, ticker=ticker)
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
        fix = "draws another run, key=value asks about the recorded one: leave out either"
        raise UserError(f"--seed {arguments.seed}: {fix}")
    change = change_by(overrides)
    world = load(directory, seed=arguments.seed, change=change)
    out = _out(arguments, directory.resolve().name, beside=directory)
    with Ticker(f"simulating {directory.name}", steps=world.rules.steps) as ticker:
        simulated = simulate_run(world, out=out, ticker=ticker)
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
