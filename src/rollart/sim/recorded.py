"""Recorded: simulate a live run again, from what its own log says everything took.

A run that was stopped before its last step is simulated up to there, as an open-ended run.

With a seed, the result is another run like it, made of segments drawn from the recorded one: some
steps and the tasks opened for them, long enough that attempts that ran at the same time, and were
slowed by the same causes, stay together.

What a log does not show stays as it was: how attempts slow each other on an engine, and how the
trainer slows them. So results are the more accurate the closer the schedule is to the recorded one.
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
from rollart.observe.run_directory import CONFIG, LOG
from rollart.sim.fleet import FleetMember
from rollart.sim.loop import Loop
from rollart.sim.measured import Measured, RunFigures
from rollart.sim.resampling import RecordedDurations, RecordedWorkload, Resampler, mean
from rollart.sim.simulator import Simulator
from rollart.sim.timed import TimedEngine
from rollart.sim.world import World

_FEWEST_STEPS = 3
_WINDOWS_PER_SEGMENT = 2
"""Length of a segment, in windows of outstanding work."""
_COMPARED = ("step_s", "staleness_mean", "staleness_max")
Change = Callable[[Rules, int], tuple[Rules, int]]
"""Changes a run's rules and its number of environments."""


def unchanged(rules: Rules, slots: int) -> tuple[Rules, int]:
    """Leave a run's rules and environments as they are."""
    return rules, slots


def load(directory: Path, *, seed: int | None = None, change: Change = unchanged) -> World:
    """Return a recorded run as a world to simulate, or with a seed one drawn from it.

    `change` runs the same attempts by another schedule.
    """
    world, resampler = _world(directory, _read(directory), seed=seed, change=change)
    if seed is not None and not resampler.can_draw:
        raise UserError(f"{directory / LOG}: has {resampler.too_short_message}; omit the seed")
    return world


def compare(directory: Path, *, draws: int = 5) -> dict[str, Any]:
    """Simulate a recorded run; return its figures as measured, as simulated, and how far apart.

    `drawn` has the mean figures of `draws` runs drawn from it. An error is relative to the measured
    value; where that is 0, it is the simulated value. For a run too short to draw from, `not_drawn`
    says so instead.
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
            f"{directory}: the run was resumed, so its log does not cover it from the start; "
            "simulate a run that was never resumed"
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
            "Another version of rollart wrote the log, or it was edited after the run."
        ) from error
    steps, started = len(measured.train_s), measured.started
    if started is None or steps < _FEWEST_STEPS or not measured.update_s:
        raise UserError(
            f"{path}: has {steps} complete optimizer steps; simulating the run needs at least "
            f"{_FEWEST_STEPS}"
        )
    length = _WINDOWS_PER_SEGMENT * (rules.mode.staleness(rules.staleness).alpha + 1)
    resampler = Resampler(seed=seed, length=length, count=steps // length)
    changed, slots = change(replace(rules, steps=steps), started.slots)
    if changed.lending.enabled and not (
        rules.lending.enabled or any(engine.lent for engine in started.engines)
    ):
        fix = (
            "the run lent no engine, so its log does not show how long that takes: "
            "record a run with lending"
        )
        raise ConfigError("lending.enabled", True, fix)
    if rules.mode.lockstep:  # the attempts' times already include waiting for each other
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
    """Return the routing of the run's config, the default without one: the log has no routing."""
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
