"""Beyond RollArt: what four rules the paper leaves open add to its own, on its own testbed.

RollArt is `paper.setup` as it stands: static affinity, three redundant groups, alpha 1, weights
loaded when a batch is taken. Beside it run the same workload, seeds, environments, GPUs (equal
cost) and alpha with one rule more, or all four:

- `routing`: requests go where they are measured to delay least, not by a table;
- `redundancy`: extra groups and the window move with observed waiting, idleness and waste;
- `lending`: training GPUs serve rollout while they wait for a batch;
- `dispatch`: of the next batch's tasks those expected to take longest start first.

The model is the 32B one, the only one the paper trains on all five tasks. Each task is also run
alone, on a quarter of everything: GPUs, environments and batch. A gain is the ratio of trained
tokens per second or of trained trajectories per second, whichever is lower: starting more than is
needed favours short attempts, and a rule is not to win by training on less. The first steps, which
fill the pipeline and in which little is known yet, are left out for both sides.

The rules were tuned on seeds from 101 on; the seeds reported here were not looked at meanwhile.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from rollart.control.dispatch import Dispatch
from rollart.control.lending import Lending
from rollart.control.rules import Rules
from rollart.sim.cluster import ClusterDurations
from rollart.sim.outcome import Outcome, simulate
from rollart.sim.paper.setup import (
    ENVIRONMENTS,
    REDUNDANT_GROUPS,
    TASKS,
    TP,
    Setup,
    testbed,
)
from rollart.sim.workload import TaskProfile
from rollart.sim.world import World
from rollart.types import Json

SIZE = "32B"
ROUTING, REDUNDANCY, LENDING, DISPATCH = "routing", "redundancy", "lending", "dispatch"
RULES = (ROUTING, REDUNDANCY, LENDING, DISPATCH)
ROLLART: tuple[str, ...] = ()
CHOICES = (*((rule,) for rule in RULES), RULES)
"""What is compared with RollArt: each rule alone, and all together."""
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t of a two-sided 95 % interval, by degrees of freedom from 1 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is simulated."""

    steps: int
    skip: int
    """Steps at the start that are left out."""
    seeds: tuple[int, ...]
    tasks: tuple[TaskProfile, ...] = TASKS
    """Those that are run alone too."""
    mix_part: int = 1
    """The mix is run on the testbed divided by this."""
    task_part: int = 4
    """The same for the tasks alone."""


FULL = Extent(steps=10, skip=4, seeds=(1, 2, 3, 4, 5))
QUICK = Extent(
    steps=6,
    skip=3,
    seeds=(1, 2),
    tasks=(TASKS[1], TASKS[4]),
    mix_part=4,
    task_part=8,
)


_Row = dict[str, Any]
"""One comparison as the study prints it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """How much faster than RollArt a run was."""

    tokens: float
    trajectories: float
    staleness: int
    """The largest of a trained group."""

    @property
    def value(self) -> float:
        """The gain that counts."""
        return min(self.tokens, self.trajectories)


def run(*, quick: bool, progress: Callable[[str], None]) -> dict[str, Json]:
    """Compare the rules with RollArt's on the mix and on each task alone."""
    return study(QUICK if quick else FULL, progress=progress)


def study(extent: Extent, *, progress: Callable[[str], None]) -> dict[str, Json]:
    """Compare the rules with RollArt's to a given extent."""
    mix = _compare(extent, tasks=TASKS, progress=progress)
    single = {
        task.name: _compare(extent, tasks=(task,), progress=progress) for task in extent.tasks
    }
    together = [gain.value for gain in mix[RULES]]
    mix_rows = [_row(rules, gains) for rules, gains in mix.items()]
    task_rows = [
        {"task": task, **_row(rules, gains)}
        for task, compared in single.items()
        for rules, gains in compared.items()
    ]
    worst = min(task_rows, key=lambda row: row["gain"])
    return {
        "mix": list[Json](mix_rows),
        "single_tasks": list[Json](task_rows),
        "together": fmean(together),
        "together_low": low(together),
        "worst_single_task": worst["gain"],
        "worst_single_task_low": worst["low"],
        "alone": {rule: fmean(gain.value for gain in mix[rule,]) for rule in RULES},
        "alone_low": {rule: low([gain.value for gain in mix[rule,]]) for rule in RULES},
        "per_seed": {str(seed): each for seed, each in zip(extent.seeds, together, strict=True)},
        "size": SIZE,
        "steps": extent.steps,
        "skipped": extent.skip,
        "seeds": list(extent.seeds),
    }


def low(values: Sequence[float]) -> float:
    """Return the lower end of the mean's two-sided 95 % interval."""
    return fmean(values) - T_95[len(values) - 2] * stdev(values) / sqrt(len(values))


def divided(setup: Setup, *, part: int) -> Setup:
    """Return a set-up with everything divided: GPUs, environments, batch and extra groups."""
    return replace(
        setup,
        compute=setup.compute // part,
        bandwidth=setup.bandwidth // part,
        train=setup.train // part,
        groups=setup.groups // part,
        environments=ENVIRONMENTS // part,
        extra_groups=max(1, REDUNDANT_GROUPS // part),
    )


def world(setup: Setup, rules: Iterable[str]) -> World:
    """Return a run of RollArt's set-up with some rules more."""
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


def _compare(
    extent: Extent,
    *,
    tasks: tuple[TaskProfile, ...],
    progress: Callable[[str], None],
) -> dict[tuple[str, ...], list[Gain]]:
    """Return the gains of every choice of rules, seed by seed."""
    gains: dict[tuple[str, ...], list[Gain]] = {rules: [] for rules in CHOICES}
    outcomes: dict[tuple[str, ...], Outcome] = {}
    part = extent.mix_part if len(tasks) > 1 else extent.task_part
    for seed, rules in product(extent.seeds, (ROLLART, *CHOICES)):
        progress(f"{'+'.join(task.name for task in tasks)}, seed {seed}, {_name(rules)}")
        setup = replace(testbed(SIZE, "rollart"), tasks=tasks, steps=extent.steps, seed=seed)
        outcomes[rules] = simulate(world(divided(setup, part=part), rules), skip=extent.skip)
        if rules:
            gains[rules].append(_gain(outcomes[rules], over=outcomes[ROLLART]))
    return gains


def _gain(outcome: Outcome, *, over: Outcome) -> Gain:
    return Gain(
        tokens=outcome.tokens_per_s / over.tokens_per_s,
        trajectories=_trajectories_per_s(outcome) / _trajectories_per_s(over),
        staleness=outcome.staleness,
    )


def _trajectories_per_s(outcome: Outcome) -> float:
    kept = outcome.steps[outcome.skipped :]
    return fmean(step.trajectories for step in kept) / outcome.step_s


def _row(rules: tuple[str, ...], gains: Sequence[Gain]) -> _Row:
    values = [gain.value for gain in gains]
    return {
        "rules": _name(rules),
        "gain": fmean(values),
        "low": low(values),
        "high": 2 * fmean(values) - low(values),
        "tokens": fmean(gain.tokens for gain in gains),
        "trajectories": fmean(gain.trajectories for gain in gains),
        "staleness": max(gain.staleness for gain in gains),
    }


def _name(rules: tuple[str, ...]) -> str:
    return {ROLLART: "rollart", RULES: "together"}.get(rules) or rules[0]
