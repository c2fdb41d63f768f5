"""Bounds: a step time that no simulation of a plan can beat.

| part       | a step takes at least                                                          |
|------------|--------------------------------------------------------------------------------|
| training   | the arithmetic of a mean batch on the training GPUs                            |
| generation | the engine time of a mean batch on the busiest pool, batches as large as fit   |
| window     | the time a group is outstanding, over the steps' worth of groups allowed       |
| slots      | the time attempts of a mean batch take alone, over the number of environments  |

The parts hold for batches with the mix of the workload; a schedule that drops long work trains on
a shorter mix. Training GPUs that are lent count as a pool that serves every task all the time.
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
"""For each task, the least seconds of every group drawn."""


def late_group_s(
    demands: Sequence[Demand], times: GroupTimes, *, groups: int, extra_groups: int
) -> float:
    """Return how long the last needed group of a batch of `groups` takes at least, on average.

    When a batch's worth of groups starts together, all but the redundant ones must complete. Two
    more are left out, because the next quickest take a little less on average.
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
    """Return the mean time of a group, over the quickest share `kept` of each task."""
    mean_s = 0.0
    for demand in demands:
        quickest = sorted(times[demand.task])
        quickest = quickest[: max(1, floor(kept * len(quickest)))]
        mean_s += demand.share * sum(quickest) / len(quickest)
    return mean_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least seconds of a step, part by part.

    Example:
        bound = Bound(training_s=90.0, generation_s=120.0, window_s=75.0, slots_s=40.0)
        (bound.step_s, bound.tightest) == (120.0, "generation")

    """

    training_s: float
    generation_s: float
    window_s: float
    slots_s: float

    @property
    def step_s(self) -> float:
        """The lower bound: no step of a mean batch is shorter."""
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
        """The name of the largest part, which sets the bound."""
        return max(self.parts, key=lambda name: self.parts[name])


@dataclass(slots=True)
class Bounds:
    """The bounds of one problem; what plans share is computed once.

    Example:
        bounds = Bounds(problem)
        bounds.of(plan).step_s  # no simulation of the plan has a shorter step

    """

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
        """Return, for each task and pool, the seconds a batch of it keeps the pool busy.

        With `any_split` they hold for every prefill/decode split that the planner may choose.
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
        """Return the fewest decode engines that any allowed split gives a share."""
        decoders = share.engines * max(1, share.decode)
        if share.is_split or not self.problem.may_split:
            return decoders
        apart = [replace(share, prefill=p, decode=d) for p, d in SPLITS]
        return min([decoders, *(each.engines * each.decode for each in apart if each.engines)])

    def least_s(self, plan: Plan, *, enough_s: float) -> float:
        """Bound a plan for every routing table and every split.

        Generation, the costly part, is computed only if the other parts are below `enough_s`.
        """
        beside_s = self._bound(plan, 0.0, self._shortest(plan)).step_s
        if beside_s >= enough_s or self._has_spare_members:
            return beside_s
        options = self.options(plan.rollout, slots=plan.slots, any_split=True)
        return max(beside_s, assign(self._with_lent(plan, options), keep=1).bound_s)

    def relax(self, plan: Plan, *, keep: int) -> tuple[Bound, Assignment]:
        """Bound a plan for every routing table, and return the tables worth trying."""
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
        """Whether groups start more attempts than they keep.

        The kept ones are then quicker than the mean by an unknown amount, so the parts that
        follow from attempt times are left out of the bound.
        """
        rule = self.problem.rules.redundancy
        return bool(rule.extra_members or rule.hedge_after)

    def _lent(self, plan: Plan) -> PoolShare | None:
        """Return the training GPUs as lendable engines, rounded up to whole engines."""
        if not self.problem.rules.lending.enabled:
            return None
        tp = min(self.problem.tps(plan.train))
        engines = ceil(plan.train_gpus / tp)
        return PoolShare(pool=replace(plan.train, name=TRAINING), gpus=engines * tp, tp=tp)

    def _with_lent(
        self, plan: Plan, options: dict[str, dict[str, dict[str, float]]]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Return the options with the training GPUs added, if they are lent."""
        lent = self._lent(plan)
        if lent is None:
            return options
        beside = self.options((lent,), slots=plan.slots)
        return {task: {**pools, **beside[task]} for task, pools in options.items()}

    def estimate_s(self, plan: Plan, bound: Bound) -> float:
        """Estimate the step time of a plan; the estimate orders plans and prunes none."""
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
        """Return the least step time that the window of outstanding groups allows.

        By Little's law: a group is outstanding while its slowest member runs alone and, where the
        window counts it, during its training and weight update; only the window's steps' worth of
        groups, and the redundant ones, are outstanding at once. And by counting: when a batch is
        taken, either the weights of the batch `alpha` steps before are served, or the last places
        came free together with those of the batch before that, and all groups started then but
        the redundant ones are complete.
        """
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
        """Return the times of each task's groups, each on the pool where it is shortest.

        They are 0, which bounds nothing, where groups start more members than they keep.
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
        """Return the costs of the engines that may serve a task."""
        home, lent = plan.serves[demand.task], self._lent(plan)
        shares = [each for each in plan.rollout if home in (ANYWHERE, each.pool.name)]
        shares += [lent] if lent is not None else []
        return [self.problem.engine_costs(share.pool.gpu, share.tp) for share in shares]

    def _group_s(self, costs: EngineCosts) -> dict[str, list[float]]:
        key = (costs.gpu.name, costs.tp)
        if key not in self._alone:
            self._alone[key] = {each.task: each.group_s(costs) for each in self.demands}
        return self._alone[key]
