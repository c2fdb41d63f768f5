"""Beyond RollArt: what four rules that the paper leaves open add to its own, on its own testbed.

RollArt is `paper.setup` unchanged: static affinity, three redundant groups, alpha 1, weights loaded
when a batch is taken. It is compared with the same workload, seeds, environments, GPUs (equal cost)
and alpha plus one rule, or all four:

- `routing`: requests go where they are measured to wait least, not by a table;
- `redundancy`: extra groups and the window follow observed waiting, idleness and waste;
- `lending`: training GPUs serve rollout while they wait for a batch;
- `dispatch`: of the next batch's tasks, those expected to take longest start first.

The model is the 32B one, the only one the paper trains on all five tasks. Each task also runs
alone, on a quarter of everything. The paper's table would then leave one pool idle, so RollArt may
also route to the least busy engine, and rules are added to and compared with the better of the two.
A gain is the lower ratio of trained tokens and of trained trajectories per second, because starting
more than needed favours short attempts. The first steps, which fill the pipeline, are left out.

On the mix, fixed numbers of redundant groups are tried too, to compare the adaptive rule with the
best number chosen by hand. The rules were tuned on seeds from 101 on; the seeds reported here were
not used for that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from rollart.control.lending import Lending
from rollart.control.rules import Dispatch, Rules
from rollart.sim.cluster import ClusterDurations
from rollart.sim.from_config import TASKS
from rollart.sim.outcome import SimOutcome, simulate
from rollart.sim.workload import TaskProfile
from rollart.sim.world import World
from rollart.types import Json
from studies.paper.rows import student_t
from studies.paper.setup import ENVIRONMENTS, REDUNDANT_GROUPS, TP, Setup, testbed
from studies.parallel import run_all

SIZE = "32B"
ROUTING, REDUNDANCY, LENDING, DISPATCH = "routing", "redundancy", "lending", "dispatch"
RULES = (ROUTING, REDUNDANCY, LENDING, DISPATCH)
CHOICES = (*((rule,) for rule in RULES), RULES)
"""The sets of rules compared with RollArt: each rule alone, and all together."""
FIXED = (8, 16, 24, 32)
"""Numbers of redundant groups tried instead of RollArt's three, for a batch of 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondExtent:
    """How much is simulated.

    Example:
        BeyondExtent(steps=10, skip=4, seeds=(1, 2, 3, 4, 5))

    """

    steps: int
    skip: int
    """Steps at the start that are left out."""
    seeds: tuple[int, ...]
    tasks: tuple[TaskProfile, ...] = TASKS
    """Tasks that are also run alone."""
    mix_part: int = 1
    """The testbed is divided by this for the mix."""
    task_part: int = 4
    """The testbed is divided by this for single tasks."""
    fixed: tuple[int, ...] = FIXED


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """RollArt's set-up with additional rules; run once with every seed.

    Example:
        Case(extent=QUICK, rules=("lending",)).name == "lending"

    """

    extent: BeyondExtent
    tasks: tuple[TaskProfile, ...] = TASKS
    rules: tuple[str, ...] = ()
    has_table: bool = True
    """Whether tasks go to pools by the paper's table."""
    extra_groups: int = REDUNDANT_GROUPS
    """Redundant groups beyond a batch of 64."""
    seed: int = 0

    def __str__(self) -> str:
        tasks = "+".join(task.name for task in self.tasks)
        return f"{tasks}, {self.name}, seed {self.seed}"

    @property
    def name(self) -> str:
        """The name of what it adds to RollArt."""
        if self.extra_groups != REDUNDANT_GROUPS:
            return f"{self.extra_groups} redundant groups"
        if not self.rules:
            return "rollart" if self.has_table else "rollart, any engine"
        return "together" if self.rules == RULES else self.rules[0]

    @property
    def setup(self) -> Setup:
        """RollArt's set-up at its size."""
        extent = self.extent
        setup = testbed(SIZE, "rollart")
        setup = replace(setup, tasks=self.tasks, steps=extent.steps, seed=self.seed)
        part = extent.mix_part if len(self.tasks) > 1 else extent.task_part
        return divided(setup, part=part, extra_groups=self.extra_groups)

    @property
    def world(self) -> World:
        """The run, ready to be simulated."""
        made = world(self.setup, self.rules)
        if self.has_table:
            return made
        return replace(made, routing=replace(made.routing, affinity={}))


def divided(setup: Setup, *, part: int, extra_groups: int = REDUNDANT_GROUPS) -> Setup:
    """Return a set-up with everything divided: GPUs, environments, batch and extra groups."""
    return replace(
        setup,
        compute=setup.compute // part,
        bandwidth=setup.bandwidth // part,
        train=setup.train // part,
        groups=setup.groups // part,
        environments=ENVIRONMENTS // part,
        extra_groups=max(1, extra_groups // part),
    )


def world(setup: Setup, rules: Iterable[str]) -> World:
    """Return a run of RollArt's set-up with additional rules."""
    chosen, plain = frozenset(rules), setup.world
    cluster, routing = setup.cluster, plain.routing
    if LENDING in chosen:
        cluster = replace(cluster, lend_tp=TP[setup.size])
    return replace(
        plain,
        rules=_beyond(plain.rules, chosen),
        routing=replace(routing, learn=ROUTING in chosen),
        make_engines=cluster.make_engines,
        durations=ClusterDurations(cluster),
    )


def _beyond(rules: Rules, chosen: frozenset[str]) -> Rules:
    if REDUNDANCY in chosen:
        rules = replace(
            rules,
            redundancy=replace(rules.redundancy, adaptive=True),
            staleness=replace(rules.staleness, adaptive=True),
        )
    if LENDING in chosen:
        rules = replace(rules, lending=Lending(enabled=True))
    if DISPATCH in chosen:
        rules = replace(rules, dispatch=Dispatch(order="longest"))
    return rules


FULL = BeyondExtent(steps=10, skip=4, seeds=(1, 2, 3, 4, 5))
QUICK = BeyondExtent(
    steps=6,
    skip=3,
    seeds=(1, 2),
    tasks=(TASKS[1], TASKS[4]),
    mix_part=4,
    task_part=8,
    fixed=(16,),
)


_Row = dict[str, Any]
"""One comparison as the study prints it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """How much faster than RollArt a run was.

    Example:
        Gain(tokens=1.3, trajectories=1.2, staleness=1).value == 1.2

    """

    tokens: float
    trajectories: float
    staleness: int
    """The largest staleness of a trained group."""

    @property
    def value(self) -> float:
        """The lower of the two gains, which is the one reported."""
        return min(self.tokens, self.trajectories)


Outcomes = Mapping[Case, Sequence[SimOutcome]]
"""For each case, one outcome per seed."""


def run(
    *, quick: bool, jobs: int, progress: Callable[[str], None], seed: int | None = None
) -> dict[str, Json]:
    """Compare the rules with RollArt's on the mix and on each task alone.

    `seed` is the first of all seeds.
    """
    extent = QUICK if quick else FULL
    if seed is not None:
        extent = replace(extent, seeds=tuple(seed + n for n in range(len(extent.seeds))))
    return study(extent, jobs=jobs, progress=progress)


def study(
    extent: BeyondExtent, *, jobs: int = 1, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Json]:
    """Compare the rules with RollArt's to a given extent."""
    mixed = Case(extent=extent)
    plain = [replace(mixed, tasks=(task,)) for task in extent.tasks]
    plain += [replace(case, has_table=False) for case in plain]
    fixed = [replace(mixed, extra_groups=number) for number in extent.fixed]
    known = dict(_simulate([mixed, *fixed, *plain], jobs=jobs, progress=progress))
    starts = [max(_alone(plain, task), key=lambda c: _rate(known[c])) for task in extent.tasks]
    added = [replace(start, rules=rules) for start in (mixed, *starts) for rules in CHOICES]
    known |= _simulate(added, jobs=jobs, progress=progress)
    mix = {rules: _gains(known, replace(mixed, rules=rules), mixed) for rules in CHOICES}
    by_hand = {case.extra_groups: _gains(known, case, mixed) for case in fixed}
    task_rows = [
        {"task": start.tasks[0].name, "start": start.name, **_row(case, _gains(known, case, start))}
        for start in starts
        for case in (replace(start, rules=rules) for rules in CHOICES)
    ]
    worst = min(task_rows, key=lambda row: row["gain"])
    together = [gain.value for gain in mix[RULES]]
    return {
        "mix": [_row(replace(mixed, rules=rules), gains) for rules, gains in mix.items()],
        "single_tasks": list[Json](task_rows),
        "together": fmean(together),
        "together_low": low(together),
        "worst_single_task": worst["gain"],
        "worst_single_task_low": worst["low"],
        "alone": {rule: _mean(mix[rule,]) for rule in RULES},
        "alone_low": {rule: low([gain.value for gain in mix[rule,]]) for rule in RULES},
        "fixed_redundancy": {str(number): _mean(gains) for number, gains in by_hand.items()},
        "adaptive_over_best_fixed": _mean(mix[REDUNDANCY,]) / max(map(_mean, by_hand.values())),
        "table_over_any_engine": {
            case.tasks[0].name: _rate(known[case]) / _rate(known[replace(case, has_table=False)])
            for case in plain
            if case.has_table
        },
        "per_seed": {str(seed): each for seed, each in zip(extent.seeds, together, strict=True)},
        "size": SIZE,
        "steps": extent.steps,
        "skipped": extent.skip,
        "seeds": list(extent.seeds),
    }


def low(values: Sequence[float]) -> float:
    """Return the lower end of the mean's two-sided 95 % interval."""
    return fmean(values) - student_t(len(values) - 1) * stdev(values) / sqrt(len(values))


def _simulate(
    cases: Sequence[Case], *, jobs: int, progress: Callable[[str], None]
) -> dict[Case, list[SimOutcome]]:
    """Simulate cases, each with every seed."""
    seeded = [replace(case, seed=seed) for case in cases for seed in case.extent.seeds]
    outcomes = iter(run_all(outcome_of, seeded, jobs=jobs, progress=progress))
    return {case: [next(outcomes) for _ in case.extent.seeds] for case in cases}


def outcome_of(case: Case) -> SimOutcome:
    """Simulate a case with its seed."""
    return simulate(case.world, skip=case.extent.skip)


def _alone(plain: Sequence[Case], task: TaskProfile) -> list[Case]:
    return [case for case in plain if case.tasks == (task,)]


def _rate(outcomes: Sequence[SimOutcome]) -> float:
    return fmean(outcome.tokens_per_s for outcome in outcomes)


def _gains(known: Outcomes, case: Case, over: Case) -> list[Gain]:
    """Return the gains of a case over another, seed by seed."""
    return [_gain(own, other) for own, other in zip(known[case], known[over], strict=True)]


def _gain(outcome: SimOutcome, over: SimOutcome) -> Gain:
    return Gain(
        tokens=outcome.tokens_per_s / over.tokens_per_s,
        trajectories=_trajectories_per_s(outcome) / _trajectories_per_s(over),
        staleness=outcome.staleness,
    )


def _trajectories_per_s(outcome: SimOutcome) -> float:
    kept = outcome.steps[outcome.skipped :]
    return fmean(step.trajectories for step in kept) / outcome.step_s


def _mean(gains: Sequence[Gain]) -> float:
    return fmean(gain.value for gain in gains)


def _row(case: Case, gains: Sequence[Gain]) -> _Row:
    values = [gain.value for gain in gains]
    return {
        "rules": case.name,
        "gain": fmean(values),
        "low": low(values),
        "high": 2 * fmean(values) - low(values),
        "tokens": fmean(gain.tokens for gain in gains),
        "trajectories": fmean(gain.trajectories for gain in gains),
        "staleness": max(gain.staleness for gain in gains),
    }
