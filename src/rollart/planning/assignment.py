"""Assignment: which pool should serve which task, and how long a step of a plan will likely take.

`assign` bounds the load of the busiest resource. If tasks could be divided freely, the least
possible maximum is a linear program; its dual puts a price on every resource and sends each task
where it is cheapest. Any prices that sum to one give a valid lower bound, so the search for good
ones may stop at any time.

`estimate_s` guesses a step time with a mean-field model; it orders candidates and prunes none. The
number of sequences that share an engine depends on how slow each token is, and the reverse, so both
are found by iteration; the estimate is the least step time that is consistent with itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import exp, inf

from rollart.planning.demand import AttemptDemand, Demand
from rollart.planning.plan import ANYWHERE, Plan, PoolShare
from rollart.planning.problem import Problem
from rollart.sim.costs import EngineCosts

Loads = Mapping[str, float]
"""Seconds of work on each resource."""
Options = Mapping[str, Loads]
"""The loads of a task in each pool."""

_ROUNDS = 40
_STEP = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A lower bound on the busiest resource, and routing tables that come close to it.

    Example:
        Assignment(bound_s=41.5, tables=({"math": "h20", "swe": "h800"},))

    """

    bound_s: float
    """Lower bound on the load of the busiest resource, however tasks are divided."""
    tables: tuple[Mapping[str, str], ...]
    """Routing tables, a pool for each task; the one with the lowest maximum load first."""


def busiest(options: Mapping[str, Options], table: Mapping[str, str]) -> float:
    """Return the load of the busiest resource under a table."""
    loads: dict[str, float] = {}
    for task, pool in table.items():
        for resource, seconds in options[task][pool].items():
            loads[resource] = loads.get(resource, 0.0) + seconds
    return max(loads.values())


def assign(options: Mapping[str, Options], *, keep: int) -> Assignment:
    """Bound the best division of tasks over pools and return up to `keep` good tables."""
    resources = sorted({name for pools in options.values() for x in pools.values() for name in x})
    total = dict.fromkeys(resources, 0.0)
    seen: dict[tuple[str, ...], dict[str, str]] = {}
    best = 0.0
    for round_ in range(_ROUNDS if len(resources) > 1 else 1):
        prices = _prices(total, round_)
        table = {task: _cheapest(pools, prices) for task, pools in options.items()}
        seen.setdefault(tuple(table.values()), table)
        loads = _loads(options, table, resources)
        best = max(best, sum(prices[name] * loads[name] for name in resources))
        scale = max(loads.values()) or 1.0
        for name in resources:
            total[name] += loads[name] / scale
    tables = _polish(options, list(seen.values()), keep=keep)
    return Assignment(bound_s=best, tables=tuple(tables))


def _prices(total: Mapping[str, float], round_: int) -> dict[str, float]:
    """Return prices that rise with the load each resource has had so far."""
    step = _STEP if round_ < _ROUNDS // 2 else _STEP / 4
    top = max(total.values())
    weights = {name: exp(step * (load - top)) for name, load in total.items()}
    whole = sum(weights.values())
    return {name: weight / whole for name, weight in weights.items()}


def _cheapest(pools: Options, prices: Mapping[str, float]) -> str:
    return min(pools, key=lambda pool: sum(prices[r] * s for r, s in pools[pool].items()))


def _loads(
    options: Mapping[str, Options], table: Mapping[str, str], resources: Sequence[str]
) -> dict[str, float]:
    loads = dict.fromkeys(resources, 0.0)
    for task, pool in table.items():
        for resource, seconds in options[task][pool].items():
            loads[resource] += seconds
    return loads


def _polish(
    options: Mapping[str, Options], tables: list[dict[str, str]], *, keep: int
) -> list[dict[str, str]]:
    """Return the best tables; the best of all is improved by moving up to two tasks at a time."""
    tables = sorted(tables, key=lambda table: busiest(options, table))[:keep]
    first = _climb(options, tables[0])
    moved = [
        {**first, task: pool} for task in first for pool in options[task] if pool != first[task]
    ]
    ranked = sorted([first, *tables, *moved], key=lambda table: busiest(options, table))
    unique = {tuple(table.values()): table for table in reversed(ranked)}
    return sorted(unique.values(), key=lambda table: busiest(options, table))[:keep]


def _climb(options: Mapping[str, Options], table: dict[str, str]) -> dict[str, str]:
    """Move up to two tasks to other pools, as long as that lowers the maximum load."""
    load = busiest(options, table)
    while True:
        near = (
            {**table, one: here, other: there}
            for one, other in combinations_with_replacement(table, 2)
            for here in options[one]
            for there in options[other]
        )
        best = min(near, key=lambda each: busiest(options, each))
        if busiest(options, best) >= load:
            return table
        table, load = best, busiest(options, best)


_ESTIMATE_ROUNDS = 6
_HALVINGS = 10
_NEVER = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSlowdown:
    """How much the sequences on one engine slow each other.

    Example:
        EngineSlowdown(reading=1.3, token_s=0.02)  # prefill takes 30 % longer; 50 tokens per second

    """

    reading: float
    """Factor by which prefill takes longer than alone."""
    token_s: float
    """Time between two tokens of a sequence."""

    def attempt_s(self, attempt: AttemptDemand, costs: EngineCosts) -> float:
        """Return how long an attempt takes on such an engine."""
        reading_s = attempt.prefill_s(costs) * self.reading
        return attempt.env_s + attempt.score_s + reading_s + attempt.sampled * self.token_s


def estimate_s(
    problem: Problem,
    plan: Plan,
    *,
    demands: Sequence[Demand],
    served_s: float,
    floor_s: float,
) -> float:
    """Return an estimate of the step time.

    A group counts as outstanding for `served_s` after its rollout; no step is shorter than
    `floor_s`. A batch is complete when its last group is: if one batch rolls out at a time, the
    longest group counts; the more batches overlap, the more the mean counts instead. With fewer
    environments than attempts, later attempts wait for earlier ones.
    """
    steps = problem.window_steps(alpha=plan.alpha, extra_groups=plan.extra_groups)
    rolling = max(1.0, steps - 1 if problem.is_served_counted else steps)
    waiting = max(0.0, steps * problem.attempts / plan.slots - 1)
    shares = {share.pool.name: share for share in plan.rollout}
    pool_parts = _pool_parts(plan, demands)

    def fits(step_s: float) -> bool:
        loads = {
            name: _engine_slowdown(
                problem, share, _rates(problem, name, demands, pool_parts), step_s=step_s
            )
            for name, share in shares.items()
        }
        mean_s = longest_s = stay_s = 0.0
        for demand in demands:
            for name, part in pool_parts[demand.task].items():
                costs = problem.engine_costs(shares[name].pool.gpu, shares[name].tp)
                mean_s += demand.share * part * loads[name].attempt_s(demand.slowest, costs)
                stay_s += demand.share * part * loads[name].attempt_s(demand.mean, costs)
                longest_s = max(longest_s, loads[name].attempt_s(demand.longest, costs))
        if longest_s == inf or problem.attempts * stay_s > plan.slots * step_s:
            return False
        group_s = waiting * stay_s + mean_s + (longest_s - mean_s) / rolling
        return (group_s + served_s) / steps <= step_s

    low, high = floor_s / 2, floor_s
    while not fits(high) and high < _NEVER:
        low, high = high, high * 1.5
    if high == floor_s:
        return floor_s
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _pool_parts(plan: Plan, demands: Sequence[Demand]) -> dict[str, Mapping[str, float]]:
    """Return each pool's share of each task; unrouted tasks are shared by engine count."""
    engines = sum(share.engines for share in plan.rollout)
    anywhere = {share.pool.name: share.engines / engines for share in plan.rollout}
    pool_parts: dict[str, Mapping[str, float]] = {}
    for demand in demands:
        pool = plan.serves[demand.task]
        pool_parts[demand.task] = anywhere if pool == ANYWHERE else {pool: 1.0}
    return pool_parts


def _rates(
    problem: Problem,
    pool: str,
    demands: Sequence[Demand],
    pool_parts: dict[str, Mapping[str, float]],
) -> list[tuple[float, Demand]]:
    """Return how many attempts of each task one step sends to a pool."""
    rates = [
        (problem.attempts * demand.share * pool_parts[demand.task].get(pool, 0.0), demand)
        for demand in demands
    ]
    return [each for each in rates if each[0]]


def _engine_slowdown(
    problem: Problem, share: PoolShare, rates: list[tuple[float, Demand]], *, step_s: float
) -> EngineSlowdown:
    if not rates:
        return EngineSlowdown(reading=1.0, token_s=0.0)
    costs = problem.engine_costs(share.pool.gpu, share.tp)
    readers = share.engines * max(1, share.prefill)
    samplers = share.engines * max(1, share.decode)
    read = sum(n * each.mean.prefill_s(costs) for n, each in rates) / (readers * step_s)
    if read >= 1:
        return EngineSlowdown(reading=inf, token_s=inf)
    tokens = sum(n * each.mean.sampled for n, each in rates)
    context = sum(n * each.mean.context for n, each in rates) / tokens
    reserved = sum(n * each.mean.reserved for n, each in rates) / tokens
    most = costs.capacity_tokens / reserved
    slowed = 1.0 if share.is_split else 1 / (1 - read)
    rate = tokens / (samplers * step_s)
    running, token_s = 1.0, 0.0
    for _ in range(_ESTIMATE_ROUNDS):
        count = min(max(running, 1.0), most)
        token_s = costs.decode_s(max(1, round(count)), cached=count * context) * slowed
        running = rate * token_s
    waits = inf if running > most else 1.0
    return EngineSlowdown(reading=1 / (1 - read), token_s=token_s * waits)
