"""Recorded: a live run made again in the simulator, from what its own log says everything took.

A run that was stopped before its last step is made again up to there, as one that goes on.

With a seed of its own the run is not made again but another one like it, of stretches drawn from
it: so many steps and the tasks opened for them, long enough that what ran at one time, and shared
whatever slowed it, stays together.

What cannot be seen in a log is held fixed: how attempts slow each other on an engine, and the
trainer them. The closer a simulated schedule is to the recorded one, the truer that is.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollart.config.simulation import ScoringOptions
from rollart.control.routing import Routing
from rollart.control.rules import Rules
from rollart.control.snapshot import decode_rules, decode_tasks
from rollart.errors import ConfigError, RollartError, UserError
from rollart.events import RunStarted
from rollart.observe.log import LogPart, read_log
from rollart.sim.fleet import FleetMember
from rollart.sim.loop import Loop
from rollart.sim.measured import Measured, RunFigures
from rollart.sim.resampling import RecordedDurations, RecordedWorkload, Resampler, mean
from rollart.sim.simulator import Simulator
from rollart.sim.timed import TimedEngine
from rollart.sim.world import World

LOG = "events.jsonl"
CONFIG = "config.toml"
_FEWEST_STEPS = 3
_WINDOWS_PER_SEGMENT = 2
"""Length of a stretch that is drawn whole, in windows of outstanding work."""
_COMPARED = ("step_s", "staleness_mean", "staleness_max")
Change = Callable[[Rules, int], tuple[Rules, int]]
"""Makes other rules, and another number of environments, of a run's own."""


def unchanged(rules: Rules, slots: int) -> tuple[Rules, int]:
    """Leave a run's rules and environments as they are."""
    return rules, slots


def load(directory: Path, *, seed: int | None = None, change: Change = unchanged) -> World:
    """Return a recorded run as a world to simulate, or with a seed one drawn from it.

    With a change its attempts go by another schedule.
    """
    world, resampler = _world(directory, _read(directory), seed=seed, change=change)
    if seed is not None and not resampler.can_draw:
        raise UserError(f"{directory / LOG}: {resampler.too_short_message}; leave out the seed")
    return world


def compare(directory: Path, *, draws: int = 5) -> dict[str, Any]:
    """Simulate a recorded run; return its figures as measured, as simulated, and how far apart.

    `drawn` are the figures of runs drawn from it, their mean over so many seeds. An error is
    relative to what was measured; where that is 0, it is the simulated value. A run too short to
    draw from has `not_drawn` in their place, which says so.
    """
    part = _read(directory)
    measured = RunFigures()
    for record in part.records:
        measured(record.time_s, record.event, record.commands)
    world, resampler = _world(directory, part, seed=None)
    before, after = measured.summary(), _simulate(world)
    result = {
        "run": str(directory),
        "mode": part.header.rules["mode"],
        "steps": len(measured.step_ends),
        "measured": before,
        "simulated": after,
        "error": _errors(before, after),
    }
    if not resampler.can_draw:
        return result | {"not_drawn": resampler.too_short_message}
    drawn = [_simulate(_world(directory, part, seed=seed)[0]) for seed in range(draws)]
    usual = {name: mean(each[name] for each in drawn) for name in _COMPARED}
    return result | {"drawn": usual, "drawn_error": _errors(before, usual)}


def ask(directory: Path, *, change: Change) -> dict[str, Any]:
    """Simulate a recorded run as it was and by another schedule; return the figures of both.

    `ratio` is the changed run's step time over the simulated one's.
    """
    part = _read(directory)
    as_it_was, _ = _world(directory, part, seed=None)
    changed, _ = _world(directory, part, seed=None, change=change)
    before, after = _simulate(as_it_was), _simulate(changed)
    return {
        "run": str(directory),
        "mode": part.header.rules["mode"],
        "asked_mode": changed.rules.mode.name,
        "steps": changed.rules.steps,
        "simulated": before,
        "what_if": after,
        "ratio": after["step_s"] / before["step_s"],
    }


def _simulate(world: World) -> Mapping[str, Any]:
    figures = RunFigures()
    Simulator(world, observers=[figures]).run()
    return figures.summary()


def _errors(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    return {name: abs(after[name] - before[name]) / (before[name] or 1.0) for name in _COMPARED}


def _read(directory: Path) -> LogPart:
    first, *later = read_log(directory / LOG)
    if later or first.header.snapshot is not None:
        raise UserError(
            f"{directory}: the run was resumed, so its log does not tell all of it from the start; "
            "simulate a run that was made in one go"
        )
    return first


def _world(
    directory: Path, part: LogPart, *, seed: int | None, change: Change = unchanged
) -> tuple[World, Resampler]:
    path = directory / LOG
    measured = Measured()
    try:
        rules = decode_rules(part.header.rules, seed=part.header.seed)
        tasks = decode_tasks(part.header.rules)
        for record in part.records:
            measured.add(record)
    except (KeyError, TypeError, ValueError, RollartError) as error:
        raise UserError(
            f"{path}: cannot be simulated: {error!r}\n"
            "It was written by another version of rollart, or changed after the run."
        ) from error
    steps, started = len(measured.train_s), measured.started
    if started is None or steps < _FEWEST_STEPS or not measured.update_s:
        raise UserError(
            f"{path}: holds {steps} whole optimizer steps; at least {_FEWEST_STEPS} are needed "
            "to simulate the run"
        )
    length = _WINDOWS_PER_SEGMENT * (rules.mode.staleness(rules.staleness).alpha + 1)
    resampler = Resampler(seed=seed, length=length, count=steps // length)
    changed, slots = change(replace(rules, steps=steps), started.slots)
    if changed.lending.enabled and not (
        rules.lending.enabled or any(engine.lent for engine in started.engines)
    ):
        fix = (
            "the run lent no engine, so its log does not tell what that takes: record one that did"
        )
        raise ConfigError("lending.enabled", True, fix)
    if rules.mode.lockstep:  # waiting for each other is in the attempts' times
        changed = replace(changed, mode=replace(changed.mode, lockstep=False))
    world = World(
        rules=changed,
        workload=RecordedWorkload(
            measured,
            tasks=tasks,
            resampler=resampler.scaled(rules.batching.groups_per_step),
        ),
        make_engines=lambda loop: _engines(started, loop),
        durations=RecordedDurations(
            measured, resampler=resampler, batch=_attempts(changed) / _attempts(rules)
        ),
        slots=slots,
        routing=_routing(directory / CONFIG),
        rewards=ScoringOptions(kind="dedicated", max_instances=1 << 30),
        open_ended=rules.steps > steps,
    )
    return world, resampler


def _attempts(rules: Rules) -> int:
    return rules.batching.groups_per_step * rules.batching.group_size


def _engines(started: RunStarted, loop: Loop) -> Sequence[FleetMember]:
    return [
        FleetMember(engine=TimedEngine(info.id, loop=loop), pool=info.pool, lent=info.lent)
        for info in started.engines
    ]


def _routing(path: Path) -> Routing:
    """Return how the run routed, which its log does not tell; a log alone has the default."""
    if not path.exists():
        return Routing()
    try:
        config: dict[str, Any] = tomllib.loads(path.read_text())
        tasks: Mapping[str, str | list[str]] = config.get("affinity", {}).get("tasks", {})
        pools = {
            domain: (names,) if isinstance(names, str) else tuple(names)
            for domain, names in tasks.items()
        }
        return Routing(affinity=pools, **config.get("routing", {}))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        what = "its sections [routing] and [affinity] cannot be used"
        raise UserError(f"{path}: {what}: {error}") from error
