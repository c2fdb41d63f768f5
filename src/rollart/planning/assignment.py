"""Assignment: the least load of the busiest resource when tasks are spread over pools.

Each task has, for each pool that may serve it, a load on the resources of that pool. If tasks could
be divided freely, the least possible maximum is a linear program; its dual puts a price on every
resource and lets each task go where it is cheapest. Any prices that sum to one give a lower bound,
so the search for good ones may stop anywhere: what is returned is never too high.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import exp

Loads = Mapping[str, float]
"""Seconds of work on each resource."""
Options = Mapping[str, Loads]
"""What a task costs in each pool."""

_ROUNDS = 40
_STEP = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The relaxed optimum and whole tables near it."""

    bound_s: float
    """No division of the tasks keeps the busiest resource below this."""
    tables: tuple[Mapping[str, str], ...]
    """A pool for each task; the least busy tables first."""


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
    """Return prices that rise with the load a resource has had so far."""
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
    """Return the best tables, the best of all improved as far as moving two tasks can."""
    tables = sorted(tables, key=lambda table: busiest(options, table))[:keep]
    first = _climb(options, tables[0])
    moved = [
        {**first, task: pool} for task in first for pool in options[task] if pool != first[task]
    ]
    ranked = sorted([first, *tables, *moved], key=lambda table: busiest(options, table))
    unique = {tuple(table.values()): table for table in reversed(ranked)}
    return sorted(unique.values(), key=lambda table: busiest(options, table))[:keep]


def _climb(options: Mapping[str, Options], table: dict[str, str]) -> dict[str, str]:
    """Give up to two tasks other pools, again and again, while that relieves the busiest."""
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
