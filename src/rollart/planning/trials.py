"""Trials: plans simulated, and what each simulation showed.

Effort is counted in what happens in simulations, the scheduler's events and the loop's actions, and
not in seconds, so that a search ends at the same place on every machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from rollart.planning.bounds import Bound, Bounds
from rollart.planning.plan import Plan
from rollart.planning.worlds import Scale, make_world
from rollart.sim.outcome import simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What simulations of one plan showed, on average."""

    tokens_per_s: float
    """Trained tokens per second, of batches of mean length."""
    step_s: float
    """Time of a step on a batch of mean length.

    What grows with tokens is corrected by the length of the batches drawn; the fixed cost of an
    optimizer step and the way of the weights, where steps wait for it, are not.
    """
    training: float
    """Share of the time in which training GPUs trained."""
    utilisation: Mapping[str, float]
    """Share of the time in which each rollout pool's engines were busy."""
    staleness: int
    """The largest staleness of a trained group."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """A plan, its bound and what is known of it."""

    plan: Plan
    bound: Bound
    runs: dict[Scale, Figures] = field(default_factory=dict[Scale, Figures])

    def figures(self, *scales: Scale) -> Figures:
        """Return the mean over some runs."""
        runs = [self.runs[scale] for scale in scales]
        count = len(runs)
        step_s = sum(run.step_s for run in runs) / count
        return Figures(
            tokens_per_s=count / sum(1 / run.tokens_per_s for run in runs),
            step_s=step_s,
            training=sum(run.training for run in runs) / count,
            utilisation={
                name: sum(run.utilisation[name] for run in runs) / count
                for name in runs[0].utilisation
            },
            staleness=max(run.staleness for run in runs),
        )


class Bench:
    """Runs trials within a budget of events."""

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
        """Say whether more runs would stay within a part of the budget."""
        attempts = sum(scale.steps * self._attempts(scale) for scale in scales)
        return self.spent + attempts * self._per_attempt <= until * self.budget

    def run(self, trial: Trial, *scales: Scale) -> Figures:
        """Simulate a plan at some scales unless that was done, and return the mean."""
        for scale in scales:
            if scale not in trial.runs:
                trial.runs[scale] = self._simulate(trial.plan, scale)
        return trial.figures(*scales)

    def value(self, trial: Trial, *scales: Scale) -> float:
        """Return what the objective makes of a plan's runs; less is better."""
        missing = any(scale not in trial.runs for scale in scales)
        return inf if missing else self.worth(trial, trial.figures(*scales).step_s)

    def reach(self, trial: Trial, *scales: Scale) -> float:
        """Return what a plan is sure to reach: its value, and not less than its own bound."""
        return max(self.value(trial, *scales), self.worth(trial, trial.bound.step_s))

    def guess(self, trial: Trial) -> float:
        """Return what the objective makes of a plan's estimated step; less is better."""
        return self.worth(trial, self.bounds.estimate_s(trial.plan, trial.bound))

    def worth(self, trial: Trial, step_s: float) -> float:
        """Return what the objective makes of a step time; less is better."""
        return self.bounds.problem.worth(step_s, hour_price=trial.plan.hour_price)

    def _attempts(self, scale: Scale) -> int:
        return min(scale.attempts, self.bounds.problem.attempts)

    def _fixed_s(self, plan: Plan) -> float:
        """Return the part of a step that is the same for batches of any length."""
        problem = self.bounds.problem
        train_s = problem.constants.train_fixed_s
        steps = problem.window_steps(alpha=plan.alpha, extra_groups=plan.extra_groups)
        return max(train_s, self.bounds.served_s(plan, train_s) / steps)

    def _simulate(self, plan: Plan, scale: Scale) -> Figures:
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
        return Figures(
            tokens_per_s=mean_tokens / step_s,
            step_s=step_s,
            training=outcome.train_s / outcome.step_s,
            utilisation=outcome.utilisation,
            staleness=outcome.staleness,
        )
