"""Trials: plans simulated, and what each simulation showed.

Effort is counted in scheduler events and loop actions, not in seconds, so a search ends at the same
point on every machine.

A plan is simulated at full size or as a scaled-down copy, with a share of the groups, environments
and GPUs. Where engines do not divide evenly, their number is rounded and their hardware is made
faster or slower to compensate, so that the work per unit of speed is the same as at full size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from rollart.hardware.gpus import Gpu
from rollart.planning.bounds import Bound, Bounds
from rollart.planning.plan import Plan, PoolShare
from rollart.planning.problem import Problem
from rollart.sim.cluster import ClusterDurations, Disaggregation, RolloutPool, SimCluster
from rollart.sim.outcome import simulate
from rollart.sim.workload import SyntheticWorkload
from rollart.sim.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of a problem is simulated, and for how long.

    Example:
        Scale(attempts=128, steps=5, skip=2)  # at most 128 attempts a step; steps 3 to 5 count

    """

    attempts: int
    """Most attempts of a step; larger steps are scaled down to it."""
    steps: int
    skip: int
    """Steps at the start that fill the pipeline and are not counted."""
    seed: int = 0


def make_world(problem: Problem, plan: Plan, *, scale: Scale) -> World:
    """Return the world that simulates a plan."""
    rules = problem.rules
    groups = max(2, round(scale.attempts / rules.batching.group_size))
    groups = min(groups, rules.batching.groups_per_step)
    part = groups / rules.batching.groups_per_step
    cluster = _cluster(problem, plan, part)
    workload = SyntheticWorkload(problem.tasks, seed=rules.seed + scale.seed)
    return World(
        rules=replace(
            rules,
            steps=scale.steps,
            seed=rules.seed + scale.seed,
            batching=replace(rules.batching, groups_per_step=groups),
            staleness=replace(rules.staleness, alpha=plan.alpha),
            redundancy=problem.with_redundancy(round(plan.extra_groups * part)),
        ),
        workload=workload,
        make_engines=cluster.make_engines,
        durations=ClusterDurations(cluster),
        slots=max(1, round(plan.slots * part)),
        routing=replace(problem.routing, affinity=plan.affinity if rules.mode.affinity else {}),
        rewards=problem.rewards,
        call_s=problem.constants.rpc_s,
    )


def _cluster(problem: Problem, plan: Plan, part: float) -> SimCluster:
    lend_tp = min(problem.tps(plan.train)) if problem.rules.lending.enabled else 0
    train_gpus = max(1, lend_tp, round(plan.train_gpus * part))
    link = problem.weights_link(plan.rollout_pools)
    return SimCluster(
        model=problem.model,
        rollout=tuple(_pool(share, part) for share in plan.rollout),
        train_gpu=_faster(plan.train.gpu, plan.train_gpus * part / train_gpus),
        train_gpus=train_gpus,
        constants=problem.constants,
        reuse_prefixes=problem.reuse_prefixes,
        blocking_weights=problem.blocking_weights,
        push_link=link,
        pull_link=link,
        lend_tp=lend_tp,
        state_gpus=plan.train_gpus,
    )


def _pool(share: PoolShare, part: float) -> RolloutPool:
    engines = max(1, round(share.engines * part))
    gpu = _faster(share.pool.gpu, share.engines * part / engines)
    split = Disaggregation(prefill=share.prefill, decode=share.decode) if share.is_split else None
    return RolloutPool(
        name=share.pool.name,
        gpu=gpu,
        gpus=engines * share.tp * max(1, share.prefill + share.decode),
        tp=share.tp,
        disaggregation=split,
    )


def _faster(gpu: Gpu, factor: float) -> Gpu:
    """Return a GPU that computes and reads `factor` times as fast."""
    if factor == 1:
        return gpu
    return replace(gpu, dense_tflops=gpu.dense_tflops * factor, hbm_tb_s=gpu.hbm_tb_s * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFigures:
    """What simulations of one plan showed, on average.

    Example:
        TrialFigures(tokens_per_s=17_900.0, step_s=231.0, training=0.45,
                     utilisation={"h800": 0.8, "h20": 0.9}, staleness=1)

    """

    tokens_per_s: float
    """Trained tokens per second, of batches of mean length."""
    step_s: float
    """Time of a step on a batch of mean length.

    The part that grows with tokens is corrected for the length of the batches drawn; the fixed cost
    of an optimizer step, and of a weight update where steps wait for it, is not.
    """
    training: float
    """Share of the time in which training GPUs trained."""
    utilisation: Mapping[str, float]
    """Share of the time in which each rollout pool's engines were busy."""
    staleness: int
    """The largest staleness of a trained group."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """A plan, its bound and its simulations so far.

    Example:
        trial = runner.trial(plan)
        runner.run(trial, Scale(attempts=128, steps=5, skip=2)).step_s

    """

    plan: Plan
    bound: Bound
    runs: dict[Scale, TrialFigures] = field(default_factory=dict[Scale, TrialFigures])

    def figures(self, *scales: Scale) -> TrialFigures:
        """Return the mean over the runs at these scales."""
        runs = [self.runs[scale] for scale in scales]
        count = len(runs)
        step_s = sum(run.step_s for run in runs) / count
        return TrialFigures(
            tokens_per_s=count / sum(1 / run.tokens_per_s for run in runs),
            step_s=step_s,
            training=sum(run.training for run in runs) / count,
            utilisation={
                name: sum(run.utilisation[name] for run in runs) / count
                for name in runs[0].utilisation
            },
            staleness=max(run.staleness for run in runs),
        )


class TrialRunner:
    """Runs trials within a budget of simulated events."""

    def __init__(self, bounds: Bounds, *, events: int) -> None:
        self.bounds = bounds
        self.budget = events
        self.spent = 0
        self.simulated = 0
        self._trials: dict[str, Trial] = {}
        self._per_attempt = 0.0

    def trial(self, plan: Plan) -> Trial:
        """Return the trial of a plan, the same one every time."""
        if plan.key not in self._trials:
            self._trials[plan.key] = Trial(plan=plan, bound=self.bounds.of(plan))
        return self._trials[plan.key]

    @property
    def tried(self) -> list[Trial]:
        """The trials that were simulated."""
        return [each for each in self._trials.values() if each.runs]

    def can_afford(self, *scales: Scale, until: float = 1.0) -> bool:
        """Return whether more runs would stay within a share of the budget."""
        attempts = sum(scale.steps * self._attempts(scale) for scale in scales)
        return self.spent + attempts * self._per_attempt <= until * self.budget

    def run(self, trial: Trial, *scales: Scale) -> TrialFigures:
        """Simulate a plan at these scales, each once, and return the mean."""
        for scale in scales:
            if scale not in trial.runs:
                trial.runs[scale] = self._simulate(trial.plan, scale)
        return trial.figures(*scales)

    def value(self, trial: Trial, *scales: Scale) -> float:
        """Return the objective value of a plan's runs; less is better."""
        missing = any(scale not in trial.runs for scale in scales)
        return inf if missing else self.worth(trial, trial.figures(*scales).step_s)

    def reach(self, trial: Trial, *scales: Scale) -> float:
        """Return the value a plan reaches for certain: never less than its own bound."""
        return max(self.value(trial, *scales), self.worth(trial, trial.bound.step_s))

    def guess(self, trial: Trial) -> float:
        """Return the objective value of a plan's estimated step; less is better."""
        return self.worth(trial, self.bounds.estimate_s(trial.plan, trial.bound))

    def worth(self, trial: Trial, step_s: float) -> float:
        """Return the objective value of a step time; less is better."""
        return self.bounds.problem.worth(step_s, hour_price=trial.plan.hour_price)

    def _attempts(self, scale: Scale) -> int:
        return min(scale.attempts, self.bounds.problem.attempts)

    def _fixed_s(self, plan: Plan) -> float:
        """Return the part of a step that is the same for batches of any length."""
        problem = self.bounds.problem
        train_s = problem.constants.train_fixed_s
        steps = problem.window_steps(alpha=plan.alpha, extra_groups=plan.extra_groups)
        return max(train_s, self.bounds.served_s(plan, train_s) / steps)

    def _simulate(self, plan: Plan, scale: Scale) -> TrialFigures:
        problem = self.bounds.problem
        world = make_world(problem, plan, scale=scale)
        outcome = simulate(world, skip=scale.skip)
        effort = outcome.events + outcome.actions
        self.spent += effort
        self.simulated += 1
        attempts = scale.steps * self._attempts(scale)
        self._per_attempt = max(self._per_attempt, effort / attempts)
        part = world.rules.batching.groups_per_step / problem.rules.batching.groups_per_step
        mean_tokens = self.bounds.batch_tokens
        drawn_tokens = outcome.tokens_per_s * outcome.step_s / part
        fixed_s = self._fixed_s(plan)
        step_s = fixed_s + (outcome.step_s - fixed_s) * mean_tokens / drawn_tokens
        return TrialFigures(
            tokens_per_s=mean_tokens / step_s,
            step_s=step_s,
            training=outcome.train_s / outcome.step_s,
            utilisation=outcome.utilisation,
            staleness=outcome.staleness,
        )
