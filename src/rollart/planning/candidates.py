"""Candidates: the plans worth simulating, from all there are.

Every division of the GPUs into whole nodes is bounded, with every tensor-parallel size that fits,
whatever its routing table; then its most promising tables are found and their steps guessed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

from rollart.planning.bounds import Bounds
from rollart.planning.plan import ANYWHERE, Plan, Share
from rollart.planning.problem import Pool, Problem

SPLITS = ((1, 1), (1, 2), (1, 3), (2, 1))
"""Prefill and decode engines of a unit."""
_MOST_STEPS = 24
"""Different numbers of GPUs tried for one use of one pool."""
_TABLES = 3
"""Routing tables tried for one division of the GPUs, beside none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What enumeration found."""

    plans: tuple[Plan, ...]
    """The candidates, the best guess first."""
    divisions: int
    """Divisions of the GPUs that were bounded."""
    least: float
    """The least bound on a step of any division, or on its cost."""


def find(bounds: Bounds, *, most: int) -> Found:
    """Bound every division and return up to `most` candidates, the best guess first."""
    problem = bounds.problem
    least, count = inf, 0
    guessed: list[tuple[float, str, Plan]] = []
    for plan in divisions(problem):
        bound, assignment = bounds.relax(plan, keep=_TABLES)
        least = min(least, problem.worth(bound.step_s, hour_price=plan.hour_price))
        count += 1
        tables: Sequence[Mapping[str, str]] = ()
        if problem.rules.mode.affinity and len(plan.rollout) > 1:
            tables = assignment.tables
        for serves in (plan.serves, *tables):
            tried = replace(plan, serves=serves)
            guess_s = bounds.estimate_s(tried, bound)
            guess = problem.worth(guess_s, hour_price=plan.hour_price)
            guessed.append((guess, tried.key, tried))
    guessed.sort(key=lambda each: each[:2])
    return Found(plans=tuple(plan for _, _, plan in guessed[:most]), divisions=count, least=least)


def divisions(problem: Problem) -> Iterator[Plan]:
    """Yield every division of the GPUs with every tensor-parallel size, tables left open."""
    alphas = problem.alphas or (problem.alpha,)
    extra = problem.rules.redundancy.extra_groups
    for pool in problem.pools:
        is_train = pool.role == "train"
        if not is_train and any(each.role == "train" for each in problem.pools):
            continue
        for gpus in _thin(problem.train_counts(pool)):
            for rollout in _rollouts(problem, pool, gpus):
                for alpha in alphas:
                    slots = problem.most_attempts(alpha=alpha, extra_groups=extra)
                    yield Plan(
                        train=pool,
                        train_gpus=gpus,
                        rollout=rollout,
                        serves={task.name: ANYWHERE for task in problem.tasks},
                        alpha=alpha,
                        extra_groups=extra,
                        slots=min(slots, problem.most_slots or slots),
                    )


def _rollouts(problem: Problem, train: Pool, train_gpus: int) -> Iterator[tuple[Share, ...]]:
    """Yield the ways to use what training leaves."""
    choices: list[list[Share | None]] = []
    for pool in problem.pools:
        left = pool.count - (train_gpus if pool is train else 0)
        if pool.role == "train" or left < 1:
            continue
        shares: list[Share | None] = [
            Share(pool=pool, gpus=gpus, tp=tp, prefill=pool.prefill, decode=pool.decode)
            for gpus in _counts(problem, pool, left)
            for tp in problem.tps(pool)
            if gpus >= tp * max(1, pool.prefill + pool.decode)
        ]
        may_stay_idle = problem.objective == "cost" or not shares
        choices.append([*shares, None] if may_stay_idle else shares)
    for chosen in product(*choices):
        rollout = tuple(share for share in chosen if share is not None)
        if rollout:
            yield rollout


def _counts(problem: Problem, pool: Pool, left: int) -> tuple[int, ...]:
    if problem.objective == "throughput":
        return (left,)
    return _thin(tuple(dict.fromkeys([*range(pool.node, left, pool.node), left])))


def _thin(counts: Sequence[int]) -> tuple[int, ...]:
    """Return at most so many counts, evenly spread, the first and the last among them."""
    if len(counts) <= _MOST_STEPS:
        return tuple(counts)
    last = len(counts) - 1
    picked = [counts[round(at * last / (_MOST_STEPS - 1))] for at in range(_MOST_STEPS)]
    return tuple(dict.fromkeys(picked))


def neighbours(problem: Problem, plan: Plan) -> Iterator[Plan]:
    """Yield the plans that differ from one in a single decision."""
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
    """Yield the plans with one node more or less in training."""
    counts = problem.train_counts(plan.train)
    at = counts.index(plan.train_gpus)
    for gpus in counts[max(0, at - 1) : at] + counts[at + 1 : at + 2]:
        moved = gpus - plan.train_gpus
        rollout: list[Share] = []
        for share in plan.rollout:
            left = share.gpus - (moved if share.pool is plan.train else 0)
            shrunk = replace(share, gpus=left)
            if left > 0 and shrunk.engines > 0:
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
