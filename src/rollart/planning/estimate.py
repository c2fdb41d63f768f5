"""Estimate: how long a plan's step will likely take, without simulating it.

A mean-field guess that orders candidates; it prunes none. At a step time `t` each engine gets a
known rate of work. How many sequences then share its steps follows from itself: the more there
are, the slower each token, the more there are. That gives the life of a group, and the window says
how short a step such lives allow. A batch is complete when its last group is: where only one batch
rolls out at a time the longest life counts, and the mean the more, the more of them do. Where there
are fewer environments than attempts, the later ones wait for the earlier. The least `t` that agrees
with itself is the estimate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from rollart.planning.demand import Attempt, Demand
from rollart.planning.plan import ANYWHERE, Plan, Share
from rollart.planning.problem import Problem
from rollart.sim.costs import EngineCosts

_ROUNDS = 6
_HALVINGS = 10
_NEVER = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """What the sequences on one engine do to each other."""

    reading: float
    """Reading takes so many times as long as alone."""
    token_s: float
    """Time between two tokens of a sequence."""

    def life_s(self, attempt: Attempt, costs: EngineCosts) -> float:
        """Return how long an attempt lives among them."""
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
    """Return a guess at the time of a step.

    `served_s` passes from the end of a group's rollout until its place is free; no step is
    shorter than `floor_s`.
    """
    steps = problem.window_steps(alpha=plan.alpha, extra_groups=plan.extra_groups)
    rolling = max(1.0, steps - 1 if problem.is_served_counted else steps)
    waiting = max(0.0, steps * problem.attempts / plan.slots - 1)
    shares = {share.pool.name: share for share in plan.rollout}
    homes = _homes(plan, demands)

    def fits(step_s: float) -> bool:
        crowds = {
            name: _crowd(problem, share, _rates(problem, name, demands, homes), step_s=step_s)
            for name, share in shares.items()
        }
        mean_s = longest_s = stay_s = 0.0
        for demand in demands:
            for name, part in homes[demand.task].items():
                costs = problem.engine_costs(shares[name].pool.gpu, shares[name].tp)
                mean_s += demand.share * part * crowds[name].life_s(demand.slowest, costs)
                stay_s += demand.share * part * crowds[name].life_s(demand.mean, costs)
                longest_s = max(longest_s, crowds[name].life_s(demand.longest, costs))
        if longest_s == inf or problem.attempts * stay_s > plan.slots * step_s:
            return False
        life_s = waiting * stay_s + mean_s + (longest_s - mean_s) / rolling
        return (life_s + served_s) / steps <= step_s

    low, high = floor_s / 2, floor_s
    while not fits(high) and high < _NEVER:
        low, high = high, high * 1.5
    if high == floor_s:
        return floor_s
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _homes(plan: Plan, demands: Sequence[Demand]) -> dict[str, Mapping[str, float]]:
    """Return the share of each task that each pool takes; what goes anywhere goes by engines."""
    engines = sum(share.engines for share in plan.rollout)
    anywhere = {share.pool.name: share.engines / engines for share in plan.rollout}
    homes: dict[str, Mapping[str, float]] = {}
    for demand in demands:
        pool = plan.serves[demand.task]
        homes[demand.task] = anywhere if pool == ANYWHERE else {pool: 1.0}
    return homes


def _rates(
    problem: Problem, pool: str, demands: Sequence[Demand], homes: dict[str, Mapping[str, float]]
) -> list[tuple[float, Demand]]:
    """Return how many attempts of each task one step brings to a pool."""
    rates = [
        (problem.attempts * demand.share * homes[demand.task].get(pool, 0.0), demand)
        for demand in demands
    ]
    return [each for each in rates if each[0]]


def _crowd(
    problem: Problem, share: Share, rates: list[tuple[float, Demand]], *, step_s: float
) -> Crowd:
    if not rates:
        return Crowd(reading=1.0, token_s=0.0)
    costs = problem.engine_costs(share.pool.gpu, share.tp)
    readers = share.engines * max(1, share.prefill)
    samplers = share.engines * max(1, share.decode)
    read = sum(n * each.mean.prefill_s(costs) for n, each in rates) / (readers * step_s)
    if read >= 1:
        return Crowd(reading=inf, token_s=inf)
    tokens = sum(n * each.mean.sampled for n, each in rates)
    context = sum(n * each.mean.context for n, each in rates) / tokens
    reserved = sum(n * each.mean.reserved for n, each in rates) / tokens
    most = costs.capacity_tokens / reserved
    slowed = 1.0 if share.is_split else 1 / (1 - read)
    rate = tokens / (samplers * step_s)
    running, token_s = 1.0, 0.0
    for _ in range(_ROUNDS):
        count = min(max(running, 1.0), most)
        token_s = costs.decode_s(max(1, round(count)), cached=count * context) * slowed
        running = rate * token_s
    waits = inf if running > most else 1.0
    return Crowd(reading=1 / (1 - read), token_s=token_s * waits)
