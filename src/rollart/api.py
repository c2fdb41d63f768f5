"""The Python interface: train, evaluate, simulate and plan from a script or a notebook.

Every function takes a config as a TOML file, as a mapping of sections, as a `Config`, or as
keyword arguments alone, and returns values that need no files to be read. Wherever a config names
an object as "module:Class", Python code may give the object itself, a class of the notebook too;
reward functions and weight stores run in other processes and must be in a module.
The command line calls the same functions, so both refuse the same mistakes with the same message.

Importing this module loads neither torch, ray nor the simulator: each function imports what it
needs when it is called.
"""

import asyncio
import dataclasses
import gc
import inspect
import json
import os
import re
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from rollart import config as configs
from rollart.checkpoints.resume import check_resumed
from rollart.checkpoints.save import STATE, checkpoints, find_checkpoint
from rollart.config import Config, RunOptions, add_import_paths, check_names, dump_toml
from rollart.config.checks import check_places, open_policy
from rollart.config.fields import keys_of
from rollart.config.loader import NAMING, nearest_keys, parse_config
from rollart.config.writer import toml_value
from rollart.errors import ConfigError, UserError
from rollart.observe.metrics import Row
from rollart.observe.replay import replay
from rollart.observe.run_directory import (
    CONFIG,
    METRICS,
    SUMMARY,
    check_free,
    check_writable,
    find_holder,
)
from rollart.observe.trackers import read_rows
from rollart.plugins import distrusting, find, import_name, refuse_inside_import
from rollart.types import Json

if TYPE_CHECKING:
    from rollart.pipelines.simulation import Simulated
    from rollart.planning.problem import Objective
    from rollart.planning.search import PlanResult

CHECKPOINTS = "checkpoints"
Source: TypeAlias = "Config | Mapping[str, Any] | Path | str | None"
"""A config: loaded, as sections by name, as the path of a TOML file, or none but the defaults."""
T = TypeVar("T")
_RUN_KEYS = frozenset(each.name for each in dataclasses.fields(RunOptions))
_SECTIONS = tuple(sorted(keys_of(Config)))
_ELSEWHERE = re.compile(r"\.rewards\.\w+\.function$|^weights\.store$")
"""Keys of objects that other processes import."""
_PLAIN_KEY = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run's directory, read: what was measured, sampled and decided.

    Example:
        >>> run = rollart.read_run("runs/quickstart")
        >>> run.summary["success_after"], run.metrics[-1]["reward_mean"]
        (0.985, 0.97)

    """

    directory: Path

    @property
    def summary(self) -> dict[str, Json]:
        """What the run came to, as `success_before` and `success_after`; empty until it ends.

        A simulated run has `step_s`, `tokens_per_s`, `utilisation` …
        """
        path = self.directory / SUMMARY
        if not path.exists():
            return {}
        try:
            return cast("dict[str, Json]", json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path}: cannot be read as a summary: {error}") from error

    @property
    def metrics(self) -> list[Row]:
        """One row for each optimizer step and one, with `eval/…`, for each evaluation."""
        return read_rows(self.directory / METRICS)

    @property
    def samples(self) -> list[str]:
        """Trajectories as readable text, in the order of their steps."""
        files = sorted((self.directory / "samples").glob("step-*.txt"))
        return [file.read_text(encoding="utf-8") for file in files]

    @property
    def config(self) -> Config:
        """The complete config that the run was made with."""
        with distrusting(self.directory):
            return configs.load_config(self.directory / CONFIG)

    @property
    def checkpoints(self) -> tuple[Path, ...]:
        """The checkpoints that were kept, oldest first."""
        return tuple(checkpoints(self.directory / CHECKPOINTS))

    def replay(self) -> dict[str, Json]:
        """Feed the run's log to the scheduler again; return `lost`, `trained_twice` and so on."""
        return replay(self.directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan for the hardware of a config.

    Example:
        >>> planned = rollart.plan("examples/plan.toml")
        >>> planned.figures["train"], planned.config.run.environments
        ({'pool': 'h800', 'gpus': 32}, 1024)

    """

    config: Config
    """The config with the plan's decisions in it: it can be trained or simulated."""
    result: "PlanResult"
    """The plan, its bounds and how it was searched for."""

    @property
    def figures(self) -> dict[str, Json]:
        """The plan and its expected figures as one JSON object."""
        from rollart.planning.search import to_json  # noqa: PLC0415 loads the simulator

        return to_json(self.result)


def load_config(
    source: Source = None,
    overrides: Sequence[str] = (),
    *,
    env: "type[Any] | str | None" = None,
    **changes: Any,
) -> Config:
    """Return the config that `source` is, with changes applied and everything validated.

    `overrides` are written as on the command line. A keyword is a key of [run] or a section, whose
    keys are merged into the one that is there. `env`, a class or a name, replaces the tasks.

    Example:
        >>> load_config("examples/quickstart.toml", steps=5, training={"learning_rate": 1e-3})
        >>> load_config("examples/quickstart.toml", ["run.steps=5"])
        >>> load_config(env="frozen_lake", steps=5)

    """
    task = _task_of(env)
    changed = task | dict(_flat(_by_section(changes), ""))
    match source:
        case Path() | str():
            written = (f"{key}={toml_value(value)}" for key, value in changed.items())
            return configs.load_config(source, overrides, changes=list(written))
        case Config() if not changed and not overrides:
            return source
        case Config():
            table: Mapping[str, Any] = tomllib.loads(dump_toml(source))
        case None:
            table = {"run": {"name": next(iter(task["tasks"]))}} if task else {}
        case _:
            table = source
    base = {"run.import_paths": [str(Path.cwd())], **dict(_flat(_by_section(table), ""))}
    if task:
        base = {key: value for key, value in base.items() if not key.startswith("tasks.")}
    typed = dict(configs.parse_override(each) for each in overrides)
    sections = _nested(_flat(base | typed | changed, ""))
    lines = (f"{name} = {toml_value(section)}" for name, section in sections.items())
    return parse_config("\n".join(lines))


def train(
    source: Source = None,
    *,
    env: "type[Any] | str | None" = None,
    resume: "Run | Path | str | None" = None,
    trust: bool = False,
    **changes: Any,
) -> Run:
    """Train an agent and return the run; see `load_config` for the arguments.

    With `resume`, a run or one of its checkpoints, training continues there; without a `source`,
    with that run's own config and in its directory, from which code is imported only with `trust`.
    Ctrl-C stops the run and saves a checkpoint;
    the summary then says `interrupted`. Works in a notebook, where an event loop is running.

    Example:
        >>> run = train(env="frozen_lake", steps=20, model={"path": "tiny:0.3M"})
        >>> run.summary["success_after"]
        0.41

    """
    refuse_inside_import("train")
    # Threads that wait asleep: spinning ones slow a busy machine twentyfold. Before torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    start = None if resume is None else _directory(resume)
    own = None
    if source is None and start is not None:
        own = find_run(start, given=str(start))
        source, changes = own / CONFIG, {"directory": str(own), **changes}
    begun: list[Any] = []
    with reading_run(own, trust=trust):
        config = load_config(source, env=env, **changes)
        check_start(config, resume=start)
        check_hardware(config)
        run_training = find("pipeline", config.run.pipeline, field="run.pipeline")
        try:
            code = run_outside_loop(
                lambda: run_training(config, resume=start, begun=begun.append),
                interrupt=lambda: bool([each.interrupt() for each in begun]),
            )
        finally:
            gc.unfreeze()  # a notebook lives on, and may train again
    run = Run(directory=config.run.path)
    if code and not run.summary:
        raise KeyboardInterrupt
    return run


def evaluate(
    run: "Run | Path | str",
    *,
    episodes: int | None = None,
    temperature: float | None = None,
    trust: bool = False,
    **changes: Any,
) -> dict[str, Json]:
    """Play held-out episodes with a run's newest checkpoint, or a checkpoint; return the figures.

    Code that is inside the run's directory is run only with `trust`.

    Example:
        >>> evaluate("runs/quickstart", episodes=100)["success_rate"]
        0.98

    """
    refuse_inside_import("evaluate")
    path = _directory(run)
    check_saved(path, given=str(path))
    from rollart.pipelines.evaluation import evaluate  # noqa: PLC0415 loads torch

    changed = dict(_flat(_by_section(changes), ""))
    overrides = [f"{key}={toml_value(value)}" for key, value in changed.items()]
    return run_outside_loop(lambda: evaluate(path, overrides, episodes, temperature, trust=trust))


def simulate(
    source: Source = None, *, directory: Path | str | None = None, **changes: Any
) -> "Simulated":
    """Simulate a run on the hardware that [pools] describes; return its rows and summary.

    Given a directory, write the event log, a timeline and a plot of use there.

    Example:
        >>> simulate("examples/simulate.toml", steps=2).summary["step_s"]
        127.4

    """
    refuse_inside_import("simulate")
    from rollart.pipelines.simulation import simulate_run  # noqa: PLC0415 loads the simulator
    from rollart.planning.from_config import world_from  # noqa: PLC0415

    config = load_config(source, **changes)
    out = None if directory is None else Path(directory)
    return simulate_run(world_from(config), out=out)


def plan(
    source: Source = None,
    *,
    objective: "Objective" = "throughput",
    any_alpha: bool = False,
    most_environments: int | None = None,
    may_split: bool = True,
    progress: Callable[[str], None] = lambda _: None,
    **changes: Any,
) -> Planned:
    """Find, by simulation, which GPUs of [pools] should train and which should roll out.

    Example:
        >>> plan("examples/plan.toml", objective="cost").figures["cost_per_step"]
        3.2

    """
    refuse_inside_import("plan")
    from rollart.planning.from_config import apply, problem_of  # noqa: PLC0415 loads the simulator
    from rollart.planning.search import search  # noqa: PLC0415

    config = load_config(source, **changes)
    problem = problem_of(
        config,
        objective=objective,
        any_alpha=any_alpha,
        most_slots=most_environments,
        may_split=may_split,
    )
    result = search(problem, progress=progress)
    return Planned(config=apply(config, result.plan), result=result)


def read_run(directory: Path | str) -> Run:
    """Return the run of a directory, or the one that a checkpoint's directory belongs to.

    Example:
        >>> read_run("runs/quickstart").summary["steps"]
        150

    """
    path = Path(directory)
    return Run(directory=find_run(path, given=str(directory)))


def reading_run(directory: Path | None, *, trust: bool) -> AbstractContextManager[None]:
    """Import no code from a run's directory whose config is used, unless the user trusts it."""
    return nullcontext() if directory is None or trust else distrusting(directory)


def check_start(config: Config, *, resume: Path | None) -> None:
    """Refuse what cannot be trained, before torch loads; leaves the run's directory as it is."""
    check_free(config.run.path)
    add_import_paths(config)
    check_names(config)
    check_writable(config.run.path)
    if resume is not None:
        check_saved(resume, given=f"--resume {resume}")
        check_resumed(config, resume)


def check_hardware(config: Config) -> None:
    """Refuse a model that lacks files, and hardware or a cluster that is not there."""
    open_policy(config).check_files()
    check_places(config)
    if config.ray.address:
        from rollart.cluster.ray_session import check_joinable  # noqa: PLC0415 loads ray

        check_joinable(config.ray.address)


def check_saved(path: Path, *, given: str) -> None:
    """Refuse a directory that is neither a checkpoint nor a run with one; `given` was typed.

    Whether the checkpoint is complete is checked when it is loaded.
    """
    _check_directory(path, given=given)
    if not any((path / name).exists() for name in (STATE, CONFIG, CHECKPOINTS)):
        raise UserError(
            f"{given}: is neither a run's directory (no {CONFIG} and no {CHECKPOINTS}/) nor a "
            f"checkpoint (no {STATE}); name one, e.g. runs/quickstart"
        )
    holder = find_holder(path)
    if holder is not None and not checkpoints(path / CHECKPOINTS):
        raise UserError(f"{given}: holds no checkpoint yet; {holder} is at work there: wait for it")
    find_checkpoint(path)


def find_run(path: Path, *, given: str) -> Path:
    """Return the run's directory that a path is, or that a checkpoint's path lies in."""
    _check_directory(path, given=given)
    for directory in (path, *list(path.resolve().parents)[:2]):
        if (directory / CONFIG).is_file():
            return directory
    raise UserError(f"{given}: holds no {CONFIG}, so it is not a run's directory")


def run_outside_loop(work: Callable[[], T], *, interrupt: Callable[[], bool] = lambda: False) -> T:
    """Call `work`, in a thread of its own where an event loop is running, as in a notebook.

    `work` runs an event loop itself, which a thread can do once at a time. A Ctrl-C while the
    thread works is passed to `interrupt`, which may be called from any thread and says whether it
    ends the work; otherwise the caller stops waiting for it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    ended = threading.Event()
    threading.Thread(target=run, name="rollart", daemon=True).start()
    while not ended.is_set():
        try:
            ended.wait()  # a thread whose join was interrupted would count as ended
        except KeyboardInterrupt:
            if not interrupt():
                raise
    if errors:
        raise errors[0]
    return results[0]


def _check_directory(path: Path, *, given: str) -> None:
    name = "name a run's directory, e.g. runs/quickstart, or one of its checkpoints"
    if not path.exists():
        raise UserError(f"{given}: no such directory; {name}")
    if not path.is_dir():
        raise UserError(f"{given}: is a file; {name}")


def _directory(run: "Run | Path | str") -> Path:
    return run.directory if isinstance(run, Run) else Path(run)


def _task_of(env: "type[Any] | str | None") -> dict[str, Any]:
    """Return the tasks of a config that has one environment, under its own name in lower case."""
    if env is None:
        return {}
    named = env if isinstance(env, str) else import_name(env, field="env")
    words = re.findall(r"[A-Z]+[a-z0-9]*|[a-z0-9]+", named.rpartition(":")[2])
    return {"tasks": {"_".join(words).lower(): {"env": named}}}


def _by_section(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as a table: keys of [run] under `run`, sections as they are."""
    for key, value in changes.items():
        if key not in _RUN_KEYS and key not in _SECTIONS and "." not in key:
            raise ConfigError(key, value, _unknown_keyword(key))
        if isinstance(value, str) and key in NAMING:
            meant = f'{key}={{"{NAMING[key]}": "{value}"}}' if key != "tasks" else f'env="{value}"'
            raise ConfigError(key, value, f"is a section; did you mean {meant}?")
    return {f"run.{key}" if key in _RUN_KEYS else key: each for key, each in changes.items()}


def _unknown_keyword(key: str) -> str:
    """Say that there is no such keyword, and how the one that was meant is written in Python."""
    meant = list[str]()
    for near in nearest_keys(key):
        section, _, name = near.partition(".")
        is_keyword = not name or section == "run"
        meant.append(name or section if is_keyword else f'{section}={{"{name}": …}}')
    if meant:
        return f"unknown keyword; did you mean {' or '.join(meant)}?"
    return f"unknown keyword; there are the keys of [run] and the sections {', '.join(_SECTIONS)}"


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys of nested tables, dotted, and values as a config has them."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value and all(map(_PLAIN_KEY.fullmatch, value)):
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield prefix + key, _plain(value, prefix + key)


def _nested(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the nested tables of dotted keys; a later value takes the place of an earlier one."""
    tables: dict[str, Any] = {}
    for key, value in values:
        *path, last = key.split(".")
        table = tables
        for part in path:
            if not isinstance(table.get(part), dict):
                table[part] = {}
            table = table[part]
        table[last] = value
    return tables


def _plain(value: Any, field: str) -> Any:
    """Return a value as a config holds it: a class or function by its name."""
    if inspect.isclass(value) or inspect.isfunction(value):
        if value.__module__ == "__main__" and _ELSEWHERE.search(field):
            fix = "runs in a process of its own, which cannot see this script: put it in a module"
            raise ConfigError(field, value.__qualname__, fix)
        return import_name(value, field=field)
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str | Mapping | list | tuple):
        return value
    fix = "a config holds text, numbers, lists, tables, and classes and functions by their name"
    raise ConfigError(field, value, fix)
