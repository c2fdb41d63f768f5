"""`rollart pools`: the hardware a config names, who prefers what, and where workers are or were."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rollart.cli.output import counted, say
from rollart.cli.parser import add_overrides
from rollart.config import Config, load_config
from rollart.config.places import Node, alive, capacities, engine_places, trainer_place, uses_of
from rollart.config.pools import LOCAL
from rollart.control.placement import Binding, Bindings, PoolRow
from rollart.errors import ConfigError, UserError
from rollart.observe.log import read_log
from rollart.observe.replay import turns_served
from rollart.observe.run_directory import LOG
from rollart.sim.from_config import shape_of

BINDINGS = "bindings.json"
"""In a run's directory, every binding of the run."""
_USES = {"train": "trains", "rollout": "rolls out", "environments": "hosts environments"}
_SHOWN = 4
"""Workers at home that a row names."""


def add_pools(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Show the pools of a config, which of them each phase and task domain prefers and where "
        "workers would be; or, of a run on a cluster, where each worker was and when."
    )
    parser.add_argument("what", metavar="CONFIG|RUN", help="a TOML file, or the directory of a run")
    parser.add_argument(
        "--address", metavar="ADDR", help="show the nodes that this Ray cluster has now"
    )
    add_overrides(parser)


def run_pools(arguments: Namespace) -> int:
    """Show the pools of a config, or the bindings of a run."""
    path = Path(arguments.what)
    if path.is_dir():
        if arguments.overrides:
            raise UserError(
                f"{arguments.overrides[0]}: a run that was made takes no overrides: leave it out"
            )
        say(render_bindings(read_bindings(path)))
        if (path / LOG).exists():
            say()
            say(render_served(turns_served(read_log(path / LOG))))
        return 0
    config = load_config(path, arguments.overrides)
    say(render_plan(config))
    say()
    nodes = None if arguments.address is None else _look(arguments.address)
    say(render(planned(config, nodes).table()))
    return 0


def planned(config: Config, nodes: Sequence[Node] | None = None) -> Bindings:
    """Bind what a config asks for, as if nothing else ran on its pools: all of it, or `nodes`."""
    bindings = Bindings(capacities(config))
    if nodes is not None:
        bindings.observe(alive(config, nodes), now=0.0)
    for rank in range(config.training.ranks):
        place = trainer_place(config)
        bindings.bind(f"rank-{rank}", preferred=place.preferred, needs=place.needs, now=0.0)
    for name, place in engine_places(config, weight_bytes=_weight_bytes(config)).items():
        bindings.bind(name, preferred=place.preferred, needs=place.needs, now=0.0)
    return bindings


def render(table: Iterable[PoolRow]) -> str:
    """Return pools, their use and their workers as text; those not at home with their wish."""
    rows = [("pool", "class", "units", "alive", "used", "workers")]
    for row in table:
        figures = (str(row.units), str(row.alive), str(row.used))
        rows.append((row.name, row.hardware, *figures, _workers(row)))
    return "\n".join(_columns(rows))


def render_plan(config: Config) -> str:
    """Return what each pool is for and what each phase and task domain prefers, as text."""
    uses = uses_of(config)
    pools = [
        (name, f"{pool.count} x {pool.hardware}", f"{pool.memory_gb_each:g} GB", _USES[uses[name]])
        for name, pool in config.pools.items()
    ]
    preferences = config.preferences
    phases = [
        (phase, " > ".join(getattr(preferences, phase)))
        for phase in ("train", "generation", "environments", "rewards")
    ]
    domains = list(dict.fromkeys(task.domain or name for name, task in config.tasks.items()))
    tasks = [(f"task {name}", _served(config, name)) for name in domains]
    local = [(LOCAL, f"{config.engine.replicas} x {config.engine.name}", "this machine")]
    return "\n".join([*_columns(pools or local), "", *_columns([*phases, *tasks])])


def render_bindings(bindings: Sequence[Binding]) -> str:
    """Return the bindings of a run in the order they began, as text."""
    rows = [("worker", "preferred", "actual", "from", "to")]
    for each in sorted(bindings, key=lambda each: each.since_s):
        until = "the end" if each.until_s is None else f"{each.until_s:.1f} s"
        wish = " > ".join(each.preferred)
        rows.append((each.worker, wish, each.actual, f"{each.since_s:.1f} s", until))
    away = sum(not each.is_at_home for each in bindings)
    total = (
        f"{counted(len(bindings), 'binding')}, {away} of them not in the pool that was preferred"
    )
    return "\n".join([*_columns(rows), "", total])


def render_served(served: Mapping[str, Mapping[str, int]]) -> str:
    """Return which share of each domain's turns each pool completed, as text."""
    rows = [("task domain", "turns", "completed by")]
    for domain, pools in sorted(served.items()):
        turns = sum(pools.values())
        ranked = sorted(pools.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{name} {count / turns:.1%}" for name, count in ranked)
        rows.append((domain, str(turns), shares or "-"))
    return "\n".join(_columns(rows))


def read_bindings(directory: Path) -> tuple[Binding, ...]:
    """Return the bindings that a run recorded."""
    path = directory / BINDINGS
    if not path.exists():
        raise UserError(f"{path}: no such file; only runs on a cluster bind workers to pools")
    try:
        rows = cast("list[dict[str, Any]]", json.loads(path.read_text()))
        return tuple(_binding(row) for row in rows)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as bindings: {error!r}") from error


def _look(address: str) -> Sequence[Node]:
    """Return the nodes that a cluster has now."""
    from rollart.cluster.ray_session import connected, nodes  # noqa: PLC0415 loads ray

    with connected(address):
        return nodes()


def _binding(row: dict[str, Any]) -> Binding:
    values: dict[str, Any] = {**row, "preferred": tuple(row["preferred"])}
    return Binding(**values)


def _served(config: Config, domain: str) -> str:
    if not config.mode.affinity:
        return f'any engine: run.mode = "{config.run.mode}" routes by load'
    return " > ".join(config.routing.pools(domain)) or "any engine"


def _weight_bytes(config: Config) -> float:
    """Return the size of the model's weights, 0 if its shape is not known."""
    try:
        return shape_of(config).weight_bytes
    except ConfigError:
        return 0.0


def _workers(row: PoolRow) -> str:
    home = [each.worker for each in row.bindings if each.is_at_home]
    more = f"and {len(home) - _SHOWN} more"
    words = home if len(home) <= _SHOWN + 1 else [*home[:_SHOWN], more]
    words += [
        f"{each.worker} (prefers {each.preferred[0]})"
        for each in row.bindings
        if each.preferred and not each.is_at_home
    ]
    return ", ".join([*words, *(f"{worker} (lost)" for worker in row.lost)]) or "-"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
