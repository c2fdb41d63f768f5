"""Recorded: a live run made again in the simulator, from what its own log says everything took.

Attempts are known by task, member and try, so one that the simulated schedule launches earlier or
later than the live one did still takes what it took. One the log does not have is drawn from the
recorded ones of its domain, by seed; one that was cancelled is drawn from those that took longer
than it had run. Within an attempt the time after the first turn is spread evenly over the others.

With a seed of its own the run is not made again but another one like it, of stretches drawn from
it: so many steps and the tasks opened for them, long enough that what ran at one time, and shared
whatever slowed it, stays together.

What cannot be seen in a log is held fixed: how attempts slow each other on an engine, and the
trainer them. The closer a simulated schedule is to the recorded one, the truer that is.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from rollart.control.dispatch import DomainOf
from rollart.control.recording import decode_domains, decode_rules
from rollart.control.routing import Routing
from rollart.control.turns import Limits
from rollart.errors import RollartError, UserError
from rollart.events import Launch, RunStarted
from rollart.observe.log import LogPart, read_log
from rollart.seeds import derive_seed
from rollart.sim.fleet import Member
from rollart.sim.loop import Loop
from rollart.sim.measured import Course, Figures, Measured, Place
from rollart.sim.rewards import RewardOptions
from rollart.sim.simulator import Simulator
from rollart.sim.stretches import Stretches
from rollart.sim.timed import TimedEngine
from rollart.sim.workload import Script, ScriptTurn
from rollart.sim.world import World
from rollart.types import EngineId, Version

T = TypeVar("T")
LOG = "events.jsonl"
CONFIG = "config.toml"
_NO_LIMIT = Limits(max_turns=1 << 30, max_tokens=1 << 30)
_FEWEST_STEPS = 3
_SPANS = 2
"""Length of a stretch that is drawn whole, in windows of outstanding work."""
_COMPARED = ("step_s", "staleness_mean", "staleness_max")


def load(directory: Path, *, seed: int | None = None) -> World:
    """Return a recorded run as a world to simulate, or with a seed one drawn from it."""
    world, stretches = _world(directory, _read(directory), seed=seed)
    if seed is not None and not stretches.are_drawn:
        raise UserError(f"{directory / LOG}: {stretches.too_few}; leave out the seed")
    return world


def compare(directory: Path, *, draws: int = 5) -> dict[str, Any]:
    """Simulate a recorded run; return its figures as measured, as simulated, and how far apart.

    `drawn` are the figures of runs drawn from it, their mean over so many seeds. An error is
    relative to what was measured; where that is 0, it is the simulated value. A run too short to
    draw from has `not_drawn` in their place, which says so.
    """
    part = _read(directory)
    measured = Figures()
    for record in part.records:
        measured(record.time_s, record.event, record.commands)
    world, stretches = _world(directory, part, seed=None)
    before, after = measured.summary(), _simulate(world)
    result = {
        "run": str(directory),
        "mode": part.header.rules["mode"],
        "steps": len(measured.step_ends),
        "measured": before,
        "simulated": after,
        "error": _errors(before, after),
    }
    if not stretches.are_drawn:
        return result | {"not_drawn": stretches.too_few}
    drawn = [_simulate(_world(directory, part, seed=seed)[0]) for seed in range(draws)]
    mean = {name: _mean([each[name] for each in drawn]) for name in _COMPARED}
    return result | {"drawn": mean, "drawn_error": _errors(before, mean)}


def _simulate(world: World) -> Mapping[str, Any]:
    figures = Figures()
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


def _world(directory: Path, part: LogPart, *, seed: int | None) -> tuple[World, Stretches]:
    path = directory / LOG
    measured = Measured()
    try:
        rules = decode_rules(part.header.rules, seed=part.header.seed)
        domain_of = decode_domains(part.header.rules)
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
    length = _SPANS * (rules.mode.staleness(rules.staleness).alpha + 1)
    mode = replace(rules.mode, lockstep=False)  # waiting for each other is in the attempts' times
    stretches = Stretches(seed=seed, length=length, count=steps // length)
    world = World(
        rules=replace(rules, steps=steps, mode=mode),
        workload=RecordedWorkload(
            measured,
            domain_of=domain_of,
            stretches=stretches.longer(rules.batching.groups_per_step),
        ),
        make_engines=lambda loop: _engines(started, loop),
        durations=RecordedDurations(measured, stretches=stretches),
        slots=started.slots,
        routing=_routing(directory / CONFIG),
        rewards=RewardOptions(kind="dedicated", most=1 << 30),
    )
    return world, stretches


def _engines(started: RunStarted, loop: Loop) -> Sequence[Member]:
    return [
        Member(engine=TimedEngine(info.id, loop=loop), pool=info.pool, lent=info.lent)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """An attempt that was stopped before its end."""

    ran_s: float


class RecordedWorkload:
    """Scripts as a log tells them, or drawn from those."""

    def __init__(self, measured: Measured, *, domain_of: DomainOf, stretches: Stretches) -> None:
        self._domain_of = domain_of
        self._stretches = stretches
        self._known: dict[Place, Script | _Cut] = {}
        self._scripts: dict[str, list[Script]] = {}
        for course in measured.courses.values():
            self._learn(course, measured)
        if not self._scripts:
            raise UserError("no attempt finished")

    def domain(self, task: int) -> str:
        """Return the domain of a task."""
        return self._domain_of(task)

    def script(self, launch: Launch) -> Script:
        """Return the course of an attempt."""
        domain = self.domain(launch.task)
        task = self._stretches.source(launch.task)
        known = self._known.get((task, launch.member, launch.attempt))
        if isinstance(known, Script) and known.domain == domain:
            return known
        everywhere = [each for scripts in self._scripts.values() for each in scripts]
        drawn_from = self._scripts.get(domain, everywhere)
        if isinstance(known, _Cut):
            longest = max(drawn_from, key=_seconds)
            drawn_from = [each for each in drawn_from if _seconds(each) > known.ran_s] or [longest]
        place = (launch.task, launch.member, launch.attempt)
        random = Random(derive_seed(self._stretches.seed or 0, *place))
        return replace(random.choice(drawn_from), domain=domain)

    def _learn(self, course: Course, measured: Measured) -> None:
        domain = self.domain(course.place[0])
        script = _script(course, measured, domain=domain)
        self._known[course.place] = script
        if isinstance(script, Script):
            self._scripts.setdefault(domain, []).append(script)


def _script(course: Course, measured: Measured, *, domain: str) -> Script | _Cut:
    """Return an attempt's course, as far as it is known."""
    ended_s = measured.last_s if course.ended_s is None else course.ended_s
    if course.info is None and not course.has_failed:
        return _Cut(ran_s=measured.own_s(course.launched_s, ended_s))
    first_s = measured.own_s(course.launched_s, course.born_s or ended_s)
    if course.info is None:
        return Script(domain=domain, reset_s=first_s, turns=(), limits=_NO_LIMIT, fails=True)
    rest_s = 0.0 if course.born_s is None else measured.own_s(course.born_s, ended_s)
    return Script(
        domain=domain,
        reset_s=0.0,
        turns=_turns(first_s, rest_s, count=course.info.turns, tokens=course.info.sampled_tokens),
        limits=_NO_LIMIT,
        score_s=course.score_s,
        reward=course.reward,
    )


def _turns(first_s: float, rest_s: float, *, count: int, tokens: int) -> tuple[ScriptTurn, ...]:
    samples = max(1, tokens // count)
    later_s = 0.0 if count == 1 else rest_s / (count - 1)
    later = ScriptTurn(reads=1, samples=samples, step_s=0.0, generate_s=later_s)
    step_s = rest_s if count == 1 else 0.0
    first = ScriptTurn(reads=1, samples=samples, step_s=step_s, generate_s=first_s)
    return (first, *[later] * (count - 1))


def _seconds(script: Script) -> float:
    return script.reset_s + sum(turn.step_s + turn.generate_s for turn in script.turns)


class RecordedDurations:
    """Durations as a log tells them; what it does not have is drawn from what it has."""

    def __init__(self, measured: Measured, *, stretches: Stretches) -> None:
        self._measured = measured
        self._stretches = stretches
        self._lend_s = _mean(measured.lend_s)

    def train_s(self, tokens: int, *, version: Version) -> float:
        """Return the time of the optimizer step from a version."""
        del tokens
        return self._take(self._measured.train_s, self._source(version))

    def publish_s(self, version: Version) -> float:
        """Return the time until a new version may be loaded."""
        return self._take(self._measured.publish_s, self._source(version))

    def update_s(self, version: Version, *, engine: EngineId) -> float:
        """Return how long an engine stands still to load it."""
        return self._take(self._measured.update_s, (self._source(version), engine))

    def lend_s(self) -> float:
        """Return the mean time of making training hardware serve or train again."""
        return self._lend_s

    def recall_s(self) -> float:
        """Return the same: both are measured together."""
        return self._lend_s

    def _source(self, version: Version) -> Version:
        return Version(self._stretches.source(version))

    def _take(self, known: Mapping[T, float], key: T) -> float:
        return known[key] if key in known else _mean(known.values())


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
