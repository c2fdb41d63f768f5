"""Candidates: the plans worth simulating, out of all plans.

Every division of the GPUs, with every tensor-parallel size that fits, is bounded for all routing
tables at once; then its most promising tables are found and their steps estimated. `least` is the
lowest bound of any plan that the search can reach, single changes included, because it is taken
over every division with the loosest window, redundancy and splits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

from rollart.planning.bounds import Bounds
from rollart.planning.plan import ANYWHERE, SPLITS, Plan, PoolShare
from rollart.planning.problem import Pool, Problem

_MOST_STEPS = 24
"""Most GPU counts tried for one use of one pool."""
_TABLES = 3
"""Routing tables tried for one division of the GPUs, in addition to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What the enumeration of plans found.

    Example:
        candidates = find(Bounds(problem), most=80)
        candidates.plans[0]  # the plan with the best estimate

    """

    plans: tuple[Plan, ...]
    """The candidates, the best estimate first."""
    rest: tuple[tuple[str, float], ...]
    """Keys of the remaining plans and the objective values of their bounds."""
    divisions: int
    """Divisions of the GPUs that were bounded."""
    least: float
    """The lowest bound, as an objective value, of any plan the search can reach."""


def find(bounds: Bounds, *, most: int) -> Candidates:
    """Bound every division and return up to `most` candidates, the best estimate first."""
    problem = bounds.problem
    count = 0
    guessed: list[tuple[float, str, Plan, float]] = []
    for plan in divisions(problem):
        bound, assignment = bounds.relax(plan, keep=_TABLES)
        worth = problem.worth(bound.step_s, hour_price=plan.hour_price)
        count += 1
        tables: Sequence[Mapping[str, str]] = ()
        if problem.rules.mode.affinity and len(plan.rollout) > 1:
            tables = assignment.tables
        for serves in (plan.serves, *tables):
            tried = replace(plan, serves=serves)
            guess_s = bounds.estimate_s(tried, bound)
            guess = problem.worth(guess_s, hour_price=plan.hour_price)
            guessed.append((guess, tried.key, tried, worth))
    guessed.sort(key=lambda each: each[:2])
    return Candidates(
        plans=tuple(plan for _, _, plan, _ in guessed[:most]),
        rest=tuple((key, worth) for _, key, _, worth in guessed[most:]),
        divisions=count,
        least=least_bound(bounds),
    )


def least_bound(bounds: Bounds) -> float:
    """Bound every plan the search can reach: any division, table, split, alpha and redundancy.

    Bounds fall with alpha and with redundant groups, so the largest of each covers all.
    """
    problem = bounds.problem
    alpha = max(problem.alphas or (problem.alpha,))
    extra = max(problem.rules.redundancy.extra_groups, *problem.extra_groups, 0)
    least = inf
    for pool in problem.trainers:
        for gpus in _reachable(problem, pool):
            for rollout in _rollouts(problem, pool, gpus):
                plan = _open(problem, pool, gpus, rollout, alpha=alpha, extra_groups=extra)
                unit = problem.worth(1.0, hour_price=plan.hour_price)
                least = min(least, unit * bounds.least_s(plan, enough_s=least / unit))
    return least


def divisions(problem: Problem) -> Iterator[Plan]:
    """Yield every division of the GPUs and tensor-parallel size, without routing tables."""
    alphas = problem.alphas or (problem.alpha,)
    extra = problem.rules.redundancy.extra_groups
    for pool in problem.trainers:
        for gpus in _thin(problem.train_counts(pool)):
            for rollout in _rollouts(problem, pool, gpus):
                for alpha in alphas:
                    yield _open(problem, pool, gpus, rollout, alpha=alpha, extra_groups=extra)


def _open(
    problem: Problem,
    train: Pool,
    gpus: int,
    rollout: tuple[PoolShare, ...],
    *,
    alpha: int,
    extra_groups: int,
) -> Plan:
    """Return the plan of a division, without a routing table."""
    slots = problem.most_attempts(alpha=alpha, extra_groups=extra_groups)
    return Plan(
        train=train,
        train_gpus=gpus,
        rollout=rollout,
        serves={task.name: ANYWHERE for task in problem.tasks},
        alpha=alpha,
        extra_groups=extra_groups,
        slots=min(slots, problem.most_slots or slots),
    )


def _rollouts(problem: Problem, train: Pool, train_gpus: int) -> Iterator[tuple[PoolShare, ...]]:
    """Yield the ways to use the GPUs that training does not take."""
    choices: list[list[PoolShare | None]] = []
    for pool in problem.pools:
        left = pool.count - (train_gpus if pool is train else 0)
        if pool.role == "train" or left < 1:
            continue
        shares: list[PoolShare | None] = [
            PoolShare(pool=pool, gpus=gpus, tp=tp, prefill=pool.prefill, decode=pool.decode)
            for gpus in _counts(problem, pool, left)
            for tp in problem.tps(pool)
            if gpus >= tp * pool.engine_units
        ]
        may_stay_idle = problem.objective == "cost" or not shares
        choices.append([*shares, None] if may_stay_idle else shares)
    for chosen in product(*choices):
        rollout = tuple(share for share in chosen if share is not None)
        if rollout:
            yield rollout


def _counts(problem: Problem, pool: Pool, left: int) -> tuple[int, ...]:
    """Return how many of the remaining GPUs may roll out: all, or fewer to save cost."""
    if problem.objective == "throughput":
        return (left,)
    step = 1 if pool.node == pool.count else pool.node
    return _thin([*range(step, left, step), left])


def _reachable(problem: Problem, pool: Pool) -> tuple[int, ...]:
    """Return the numbers of training GPUs that single changes can reach."""
    counts = problem.train_counts(pool)
    return counts if problem.objective == "throughput" else _thin(counts)


def _thin(counts: Sequence[int]) -> tuple[int, ...]:
    """Return at most `_MOST_STEPS` counts, evenly spread, with the first and the last."""
    if len(counts) <= _MOST_STEPS:
        return tuple(counts)
    last = len(counts) - 1
    picked = [counts[round(at * last / (_MOST_STEPS - 1))] for at in range(_MOST_STEPS)]
    return tuple(dict.fromkeys(picked))


def neighbours(problem: Problem, plan: Plan) -> Iterator[Plan]:
    """Yield the plans that differ from `plan` in a single decision."""
    yield from _moved_nodes(problem, plan)
    yield from _other_tables(problem, plan)
    yield from _other_engines(problem, plan)
    extras = problem.extra_groups or ()
    for extra in extras:
        if extra != plan.extra_groups:
            slots = problem.most_attempts(alpha=plan.alpha, extra_groups=extra)
            slots = min(slots, problem.most_slots or slots)
            yield replace(plan, extra_groups=extra, slots=slots)


def _moved_nodes(problem: Problem, plan: Plan) -> Iterator[Plan]:
    """Yield the plans with the next larger or smaller number of GPUs in training."""
    counts = _reachable(problem, plan.train)
    at = counts.index(plan.train_gpus)
    for gpus in counts[max(0, at - 1) : at] + counts[at + 1 : at + 2]:
        moved = gpus - plan.train_gpus
        rollout: list[PoolShare] = []
        for share in plan.rollout:
            left = share.gpus - (moved if share.pool is plan.train else 0)
            room = share.pool.count - (gpus if share.pool is plan.train else 0)
            shrunk = replace(share, gpus=left)
            if left > 0 and left in _counts(problem, share.pool, room) and shrunk.engines > 0:
                rollout.append(shrunk)
        names = {share.pool.name for share in rollout}
        serves = {t: p if p in names else ANYWHERE for t, p in plan.serves.items()}
        if rollout:
            yield replace(plan, train_gpus=gpus, rollout=tuple(rollout), serves=serves)


def _other_tables(problem: Problem, plan: Plan) -> Iterator[Plan]:
    if not problem.rules.mode.affinity or len(plan.rollout) == 1:
        return
    pools = [ANYWHERE, *(share.pool.name for share in plan.rollout)]
    for task, home in plan.serves.items():
        for pool in pools:
            if pool != home:
                yield replace(plan, serves={**plan.serves, task: pool})


def _other_engines(problem: Problem, plan: Plan) -> Iterator[Plan]:
    for at, share in enumerate(plan.rollout):
        together = [replace(share, tp=tp, prefill=0, decode=0) for tp in problem.tps(share.pool)]
        splits = SPLITS if problem.may_split else ()
        apart = [replace(share, prefill=p, decode=d) for p, d in splits]
        if share.pool.prefill:
            together, apart = [replace(share, tp=tp) for tp in problem.tps(share.pool)], []
        for other in (*together, *apart):
            if other != share and other.engines > 0:
                rollout = (*plan.rollout[:at], other, *plan.rollout[at + 1 :])
                yield replace(plan, rollout=rollout)
