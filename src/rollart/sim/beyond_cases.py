"""Cases of the study of rules beyond RollArt: its set-up with some rules more, at some size."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rollart.control.dispatch import Dispatch
from rollart.control.lending import Lending
from rollart.control.rules import Rules
from rollart.sim.cluster import ClusterDurations
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

SIZE = "32B"
ROUTING, REDUNDANCY, LENDING, DISPATCH = "routing", "redundancy", "lending", "dispatch"
RULES = (ROUTING, REDUNDANCY, LENDING, DISPATCH)
CHOICES = (*((rule,) for rule in RULES), RULES)
"""What is compared with RollArt: each rule alone, and all together."""
FIXED = (8, 16, 24, 32)
"""Redundant groups beyond a batch of 64 that are tried in place of RollArt's three."""


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
    fixed: tuple[int, ...] = FIXED


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """RollArt's set-up with some rules more; run once with every seed."""

    extent: Extent
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
        """What it adds to RollArt."""
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
