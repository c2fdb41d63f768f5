"""Bounds: what no simulation of a plan can be faster than.

| part       | a step takes at least                                                          |
|------------|--------------------------------------------------------------------------------|
| training   | the arithmetic of a mean batch on the training GPUs                            |
| generation | the engine time of a mean batch on the busiest pool, batches as large as fit   |
| window     | a group's life, over the steps' worth of groups that may live at once          |
| slots      | the time attempts of a mean batch take alone, over the environments there are  |

The window follows from Little's law: a group lives through its slowest member with engines that
have nothing else to do, and, where the window counts it, its training and the way of the new
weights to the engines; only so many steps' worth of groups as the window allows, and the redundant
ones, live at once. And from counting: when a batch is taken, either the weights of the batch
`alpha` steps before are served; or the last places came free together, with those of the batch
before that, and of the groups that then started all but the redundant ones are complete. The parts
hold for batches that have the mix of the workload; a schedule that drops long work trains on a
shorter mix. Where groups keep their first members alone (extra members, hedging), what is kept is
quicker than the mean by an amount nobody knows beforehand, so what follows from lives and from work
is left out. Training GPUs that are lent count as a pool that serves every task all the time.

Lives: how long groups of a batch take at least, from what each drawn group takes alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor
from typing import TypeAlias

from rollart.hardware.gpus import link_named
from rollart.planning.assignment import Assignment, assign, busiest, estimate_s
from rollart.planning.demand import Demand, measure
from rollart.planning.plan import ANYWHERE, SPLITS, Plan, PoolShare
from rollart.planning.problem import Problem
from rollart.sim.cluster import TRAINING
from rollart.sim.costs import EngineCosts, TrainCosts, WeightCosts

GroupTimes: TypeAlias = Mapping[str, list[float]]
"""Of each task, the least seconds of every group drawn."""


def late_group_s(
    demands: Sequence[Demand], times: GroupTimes, *, groups: int, extra_groups: int
) -> float:
    """Return a life that some group of a batch of `groups` has at least, on average.

    Of a batch's worth of groups that start together all must complete but as many as there are
    redundant ones. Two more are left out, for the next quickest live a little less on average.
    """
    ranked = sorted(
        (seconds, demand.share / len(times[demand.task]))
        for demand in demands
        for seconds in times[demand.task]
    )
    level = 1 - (extra_groups + 2) / groups
    level = level if extra_groups else max(0.5, level)
    reached = 0.0
    for seconds, share in ranked:
        reached += share
        if reached >= level:
            return seconds
    return ranked[-1][0]


def mean_group_s(demands: Sequence[Demand], times: GroupTimes, *, kept: float) -> float:
    """Return the mean life of groups, the quickest share of each task only."""
    mean_s = 0.0
    for demand in demands:
        quickest = sorted(times[demand.task])
        quickest = quickest[: max(1, floor(kept * len(quickest)))]
        mean_s += demand.share * sum(quickest) / len(quickest)
    return mean_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Least seconds of a step, part by part."""

    training_s: float
    generation_s: float
    window_s: float
    slots_s: float

    @property
    def step_s(self) -> float:
        """No step of a mean batch is shorter."""
        return max(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """The parts by name."""
        return {
            "training": self.training_s,
            "generation": self.generation_s,
            "window": self.window_s,
            "slots": self.slots_s,
        }

    @property
    def tightest(self) -> str:
        """The part that decides."""
        return max(self.parts, key=lambda name: self.parts[name])


@dataclass(slots=True)
class Bounds:
    """The bounds of one problem; what plans share is computed once."""

    problem: Problem
    demands: tuple[Demand, ...] = field(init=False)
    batch_tokens: float = field(init=False)
    """Tokens of a mean batch."""
    _alone: dict[tuple[str, int], dict[str, list[float]]] = field(init=False)

    def __post_init__(self) -> None:
        problem = self.problem
        self.demands = measure(
            problem.tasks,
            members=problem.rules.batching.group_size,
            reuse=problem.reuse_prefixes,
            call_s=problem.constants.rpc_s,
            seed=problem.rules.seed,
        )
        per_attempt = sum(demand.share * demand.mean.tokens for demand in self.demands)
        self.batch_tokens = problem.attempts * per_attempt
        self._alone = {}

    def options(
        self, rollout: tuple[PoolShare, ...], *, slots: int, any_split: bool = False
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Return, for each task and pool, the seconds a batch of it would keep the pool busy.

        With `any_split` they hold for every split of prefill and decode that is up to the planner.
        """
        return {
            demand.task: {
                share.pool.name: self._loads(demand, share, slots=slots, any_split=any_split)
                for share in rollout
            }
            for demand in self.demands
        }

    def _loads(
        self, demand: Demand, share: PoolShare, *, slots: int, any_split: bool
    ) -> dict[str, float]:
        """Return the seconds a batch of one task keeps each resource of a pool busy."""
        costs = self.problem.engine_costs(share.pool.gpu, share.tp)
        readers = share.engines * max(1, share.prefill)
        decoders = share.engines * max(1, share.decode)
        sharing = self._fewest_decoders(share) if any_split else decoders
        count = self.problem.attempts * demand.share
        read_s = count * demand.mean.prefill_s(costs)
        sample_s = count * demand.decode_s(costs, most=slots / sharing)
        name = share.pool.name
        if share.is_split:
            return {f"{name}/prefill": read_s / readers, f"{name}/decode": sample_s / decoders}
        return {name: (read_s + sample_s) / readers}

    def _fewest_decoders(self, share: PoolShare) -> int:
        """Return how few engines decode under any split a share may be given."""
        decoders = share.engines * max(1, share.decode)
        if share.is_split or not self.problem.may_split:
            return decoders
        apart = [replace(share, prefill=p, decode=d) for p, d in SPLITS]
        return min([decoders, *(each.engines * each.decode for each in apart if each.engines)])

    def least_s(self, plan: Plan, *, enough_s: float) -> float:
        """Bound a plan whatever its routing table and its splits.

        Generation is looked at only if the other parts are below `enough_s`.
        """
        beside_s = self._bound(plan, 0.0, self._shortest(plan)).step_s
        if beside_s >= enough_s or self._has_spare_members:
            return beside_s
        options = self.options(plan.rollout, slots=plan.slots, any_split=True)
        return max(beside_s, assign(self._with_lent(plan, options), keep=1).bound_s)

    def relax(self, plan: Plan, *, keep: int) -> tuple[Bound, Assignment]:
        """Bound a plan whatever its routing table, and return the tables worth trying."""
        options = self.options(plan.rollout, slots=plan.slots)
        assignment = assign(options, keep=keep)
        least_s = assignment.bound_s
        if self._lent(plan) is not None:
            least_s = assign(self._with_lent(plan, options), keep=1).bound_s
        return self._bound(plan, least_s, self._shortest(plan)), assignment

    def of(self, plan: Plan) -> Bound:
        """Bound a plan."""
        options = self._with_lent(plan, self.options(plan.rollout, slots=plan.slots))
        allowed = {
            task: {
                name: loads
                for name, loads in pools.items()
                if plan.serves[task] in (ANYWHERE, name) or name == TRAINING
            }
            for task, pools in options.items()
        }
        if all(len(pools) == 1 for pools in allowed.values()):
            generation_s = busiest(allowed, {task: next(iter(allowed[task])) for task in allowed})
        else:
            generation_s = assign(allowed, keep=1).bound_s
        return self._bound(plan, generation_s, self._shortest(plan))

    @property
    def _has_spare_members(self) -> bool:
        """Whether groups have more attempts than they keep."""
        rule = self.problem.rules.redundancy
        return bool(rule.extra_members or rule.hedge_after)

    def _lent(self, plan: Plan) -> PoolShare | None:
        """Return the training GPUs as the engines they can be lent as, a part of one as a whole."""
        if not self.problem.rules.lending.enabled:
            return None
        tp = min(self.problem.tps(plan.train))
        engines = ceil(plan.train_gpus / tp)
        return PoolShare(pool=replace(plan.train, name=TRAINING), gpus=engines * tp, tp=tp)

    def _with_lent(
        self, plan: Plan, options: dict[str, dict[str, dict[str, float]]]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Return options to which training GPUs are added, if they are lent."""
        lent = self._lent(plan)
        if lent is None:
            return options
        beside = self.options((lent,), slots=plan.slots)
        return {task: {**pools, **beside[task]} for task, pools in options.items()}

    def estimate_s(self, plan: Plan, bound: Bound) -> float:
        """Guess the step of a plan; the guess orders plans and prunes none."""
        return estimate_s(
            self.problem,
            plan,
            demands=self.demands,
            served_s=self.served_s(plan, bound.training_s),
            floor_s=bound.step_s,
        )

    def served_s(self, plan: Plan, training_s: float) -> float:
        """Return how long a group stays outstanding after its rollout."""
        problem = self.problem
        if not problem.is_served_counted:
            return 0.0
        link = link_named(problem.weights_link(plan.rollout_pools))
        weights = WeightCosts(
            model=problem.model,
            push_link=link,
            pull_link=link,
            constants=problem.constants,
            blocking=problem.blocking_weights,
        )
        return training_s + weights.publish_s + weights.update_s

    def _bound(self, plan: Plan, generation_s: float, group_s: GroupTimes) -> Bound:
        problem = self.problem
        training_s = TrainCosts(
            model=problem.model,
            gpu=plan.train.gpu,
            gpus=plan.train_gpus,
            constants=problem.constants,
        ).step_s(self.batch_tokens)
        window_s = self._window_s(plan, group_s, served_s=self.served_s(plan, training_s))
        if self._has_spare_members:
            return Bound(training_s=training_s, generation_s=0, window_s=window_s, slots_s=0)
        stay_s = sum(
            demand.share
            * min(demand.mean.alone_s(costs) for costs in self._serving_costs(plan, demand))
            for demand in self.demands
        )
        return Bound(
            training_s=training_s,
            generation_s=generation_s,
            window_s=window_s,
            slots_s=problem.attempts * stay_s / plan.slots,
        )

    def _window_s(self, plan: Plan, group_s: GroupTimes, *, served_s: float) -> float:
        problem, alpha = self.problem, plan.alpha
        extra = problem.most_extra_groups(plan.extra_groups)
        steps = problem.window_steps(alpha=alpha, extra_groups=extra)
        kept = problem.window_steps(alpha=alpha, extra_groups=0) / steps
        least_s = (mean_group_s(self.demands, group_s, kept=kept) + served_s) / steps
        groups = problem.rules.batching.groups_per_step
        late_s = late_group_s(self.demands, group_s, groups=groups, extra_groups=extra)
        if problem.is_served_counted:
            complete_s = (late_s + served_s) / (alpha + 1)
            return max(least_s, min(complete_s, served_s / alpha) if alpha else complete_s)
        return max(least_s, late_s) if alpha == 1 else least_s

    def _shortest(self, plan: Plan) -> GroupTimes:
        """Return each task's group lives, each on the pool where it is shortest.

        Nothing is known of them where groups keep their first members alone.
        """
        if self._has_spare_members:
            return {demand.task: [0.0] for demand in self.demands}
        times: dict[str, list[float]] = {}
        for demand in self.demands:
            per_pool = [
                self._group_s(costs)[demand.task] for costs in self._serving_costs(plan, demand)
            ]
            times[demand.task] = [min(group) for group in zip(*per_pool, strict=True)]
        return times

    def _serving_costs(self, plan: Plan, demand: Demand) -> list[EngineCosts]:
        """Return the engines that may serve a task."""
        home, lent = plan.serves[demand.task], self._lent(plan)
        shares = [each for each in plan.rollout if home in (ANYWHERE, each.pool.name)]
        shares += [lent] if lent is not None else []
        return [self.problem.engine_costs(share.pool.gpu, share.tp) for share in shares]

    def _group_s(self, costs: EngineCosts) -> dict[str, list[float]]:
        key = (costs.gpu.name, costs.tp)
        if key not in self._alone:
            self._alone[key] = {each.task: each.group_s(costs) for each in self.demands}
        return self._alone[key]
