"""The planner's study: its plans against the paper's own split and a badly divided cluster.

The problems are the paper's testbed and the shape of its production cluster. Plans are chosen on
some seeds and compared on others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import process_time

from rollart.clock import SystemClock
from rollart.planning.bounds import Bounds
from rollart.planning.candidates import divisions
from rollart.planning.plan import Plan, PoolShare
from rollart.planning.problem import Pool, Problem
from rollart.planning.search import EVENTS, search
from rollart.planning.trials import Scale, TrialRunner
from rollart.types import Json
from studies.paper.setup import (
    AFFINITY,
    BANDWIDTH,
    COMPUTE,
    ENVIRONMENTS,
    H20,
    H800,
    PRODUCTION,
    SIZES,
    TP,
    shape,
    testbed,
)
from studies.paper.setup import tasks as mix


def paper_problem(size: str) -> Problem:
    """Return the paper's testbed, mix and schedule: 96 H800 and 32 H20."""
    setup = testbed(size, "rollart")
    return Problem(
        model=setup.cluster.model,
        pools=(
            Pool(name=COMPUTE, gpu=H800, count=setup.compute + setup.train),
            Pool(name=BANDWIDTH, gpu=H20, count=setup.bandwidth, role="rollout"),
        ),
        tasks=mix(size),
        rules=setup.rules,
        most_slots=ENVIRONMENTS,
        reuse_prefixes=setup.reuse_prefixes,
        constants=setup.constants,
    )


def production_problem() -> Problem:
    """Return the shape of the production cluster, small enough to plan in a minute.

    The planner decides only the division of its GPUs.
    """
    setup = testbed("32B", "rollart")
    return Problem(
        model=shape("32B"),
        pools=(Pool(name=COMPUTE, gpu=H800, count=192, tp=TP["32B"]),),
        tasks=(PRODUCTION,),
        rules=setup.rules,
        may_split=False,
        constants=setup.constants,
    )


_WAITING = 0.62
"""The trainer's idle share before tuning, as the paper reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is searched and simulated.

    Example:
        Effort(events=200_000, comparing=(Scale(attempts=128, steps=6, skip=2, seed=10),),
               probing=Scale(attempts=128, steps=5, skip=2, seed=9))

    """

    events: int
    """Budget of a search, in simulated events."""
    comparing: tuple[Scale, ...]
    """The runs in which plans are compared; no search uses their seeds."""
    probing: Scale
    """The run in which a bad starting division is searched."""


FULL = Effort(
    events=EVENTS,
    comparing=tuple(Scale(attempts=512, steps=6, skip=2, seed=seed) for seed in range(10, 15)),
    probing=Scale(attempts=128, steps=5, skip=2, seed=9),
)
QUICK = Effort(
    events=EVENTS // 12,
    comparing=(Scale(attempts=128, steps=6, skip=2, seed=10),),
    probing=FULL.probing,
)


def run(
    *, quick: bool, progress: Callable[[str], None], seed: int | None = None
) -> dict[str, Json]:
    """Compare plans with the splits they should beat; return the figures.

    `seed` is the first of those in which plans are compared; one more probes.
    """
    effort = QUICK if quick else FULL
    if seed is not None:
        comparing = tuple(replace(each, seed=seed + n) for n, each in enumerate(effort.comparing))
        probing = replace(effort.probing, seed=seed + len(comparing))
        effort = replace(effort, comparing=comparing, probing=probing)
    return study(effort, sizes=SIZES, shape=production_problem(), progress=progress)


def study(
    effort: Effort, *, sizes: Sequence[str], shape: Problem, progress: Callable[[str], None]
) -> dict[str, Json]:
    """Compare plans for some of the paper's models, and for a production shape."""
    gains: dict[str, Json] = {}
    plans: dict[str, Json] = {}
    gaps: dict[str, Json] = {}
    slowest = busiest = 0.0
    untried: dict[str, Json] = {}
    for name in sizes:
        progress(f"planning {name} on 96 H800 and 32 H20")
        problem = paper_problem(name)
        clock, cpu_before = SystemClock(), process_time()
        answer = search(problem, events=effort.events)
        slowest = max(slowest, clock.now())
        busiest = max(busiest, process_time() - cpu_before)
        progress(f"{name}: {answer.plan}; comparing with the paper's split")
        own = _throughput(problem, answer.plan, effort.comparing)
        gains[name] = own / _throughput(problem, paper_split(name), effort.comparing)
        plans[name], gaps[name] = str(answer.plan), answer.gap
        untried[name] = answer.untried
    progress("planning the production shape")
    production = _production(shape, effort)
    return {
        "over_paper_split": gains,
        "seconds": slowest,
        "cpu_seconds": busiest,
        "production_gain": production["gain"],
        "plans": plans,
        "gap": gaps,
        "untried": untried,
        "production": production,
    }


def paper_split(size: str) -> Plan:
    """Return the division the paper's experiments used."""
    problem, setup = paper_problem(size), testbed(size, "rollart")
    compute, bandwidth = problem.pools
    extra = setup.rules.redundancy.extra_groups
    slots = problem.most_attempts(alpha=setup.alpha, extra_groups=extra)
    return Plan(
        train=compute,
        train_gpus=setup.train,
        rollout=(
            PoolShare(pool=compute, gpus=setup.compute, tp=TP[size]),
            PoolShare(pool=bandwidth, gpus=setup.bandwidth, tp=TP[size]),
        ),
        serves={task.name: AFFINITY[task.name][0] for task in problem.tasks},
        alpha=setup.alpha,
        extra_groups=extra,
        slots=min(slots, problem.most_slots),
    )


def _throughput(problem: Problem, plan: Plan, scales: tuple[Scale, ...]) -> float:
    runner = TrialRunner(Bounds(problem), events=0)
    return runner.run(runner.trial(plan), *scales).tokens_per_s


def _production(problem: Problem, effort: Effort) -> dict[str, Json]:
    """Tune a cluster that starts like the paper's: the trainer waits, prefixes are not cached."""
    before = replace(problem, reuse_prefixes=False)
    start, waiting = badly_divided(before, effort.probing)
    answer = search(problem, events=effort.events)
    ratio = search(before, events=effort.events)
    base = _throughput(before, start, effort.comparing)
    return {
        "gain": _throughput(problem, answer.plan, effort.comparing) / base,
        "gain_from_prefixes": _throughput(problem, start, effort.comparing) / base,
        "gain_from_ratio": _throughput(before, ratio.plan, effort.comparing) / base,
        "start": str(start),
        "start_waiting": waiting,
        "plan": str(answer.plan),
        "plan_without_prefixes": str(ratio.plan),
    }


def badly_divided(problem: Problem, scale: Scale) -> tuple[Plan, float]:
    """Return the division whose trainer's waiting time is closest to the paper's."""
    runner = TrialRunner(Bounds(problem), events=0)
    best: tuple[Plan, float] | None = None
    for plan in divisions(problem):
        waiting = 1 - runner.run(runner.trial(plan), scale).training
        if best is None or abs(waiting - _WAITING) < abs(best[1] - _WAITING):
            best = (plan, waiting)
    assert best is not None
    return best
