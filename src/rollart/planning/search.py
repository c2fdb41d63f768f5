"""Search: from a problem to a plan, first by bounds, then by simulation.

    divisions ─ bound ─► candidates ─ short runs ─► the better half ─ longer runs ─► the best
      ─ single changes that help, one after another ─► full runs ─► plan

A plan whose bound is worse, by more than noise, than a simulated result is never simulated. The
search ends when no plan left could be better, or when its budget is spent; the result says how many
plans were not tried. The same problem gives the same plan, because effort is counted in simulated
events and not in seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rollart.planning.bounds import Bound, Bounds
from rollart.planning.candidates import Candidates, find, neighbours
from rollart.planning.plan import Plan
from rollart.planning.problem import Problem
from rollart.planning.trials import Scale, Trial, TrialFigures, TrialRunner

EVENTS = 2_400_000
"""Default budget; takes half a minute to a minute on one core."""
_CANDIDATES = 80
"""Most candidates that may be simulated."""
_SHORT = Scale(attempts=128, steps=5, skip=2)
_LONG = Scale(attempts=128, steps=10, skip=2, seed=1)
_FULL = Scale(attempts=512, steps=6, skip=2, seed=2)
_SCREEN, _HALVE, _CLIMB = 0.35, 0.5, 0.75
"""Shares of the budget after which each stage ends."""
_FINALISTS = 2
_HARMLESS = 1.01
"""A step longer by at most this factor is accepted to save environments."""
_NOISE = 1.05
"""A bound rules a plan out only if it exceeds another plan's result by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """A plan and why it was chosen.

    Example:
        answer = search(problem)
        str(answer.plan)  # "8 h800 train, 16 h800 (tp 1) + 16 h20 (tp 1) roll out"
        answer.gap  # 1.2: the plan's step over the lowest bound of all plans

    """

    problem: Problem
    plan: Plan
    figures: TrialFigures
    bound: Bound
    """The bound of the plan itself."""
    least: float
    """The lowest bound of all plans the search can reach: seconds of a step, or its cost."""
    gap: float
    """The plan's simulated step over that bound."""
    others: tuple[tuple[Plan, float], ...]
    """Other plans and their objective value relative to this one's, in the same short run."""
    divisions: int
    simulated: int
    """Simulations made."""
    tried: int
    """Plans that were simulated."""
    pruned: int
    """Plans ruled out by their bound without a simulation."""
    untried: int
    """Plans that no bound ruled out, not simulated because the budget ran out."""
    events: int

    @property
    def cost(self) -> float:
        """Price of one step."""
        return self.figures.step_s / 3600 * self.plan.hour_price


@dataclass(slots=True)
class _Tally:
    """Keys of the plans that were not simulated when first considered, and why."""

    pruned: set[str] = field(default_factory=set[str])
    untried: set[str] = field(default_factory=set[str])

    def count(self, runner: TrialRunner) -> tuple[int, int, int]:
        """Return how many plans were simulated, ruled out and not tried."""
        tried = {each.plan.key for each in runner.tried}
        pruned = self.pruned - tried
        return len(tried), len(pruned), len(self.untried - tried - pruned)


def search(
    problem: Problem,
    *,
    events: int = EVENTS,
    progress: Callable[[str], None] = lambda _: None,
) -> PlanResult:
    """Return the best plan found."""
    bounds = Bounds(problem)
    found = find(bounds, most=_CANDIDATES)
    runner, tally = TrialRunner(bounds, events=events), _Tally()
    candidates = len(found.plans) + len(found.rest)
    progress(f"{found.divisions} divisions of the GPUs, {candidates} candidates")
    trials = _screen(runner, found, tally)
    progress(f"candidates: {_say(tally.count(runner))}")
    trials = _halve(runner, trials)
    best = _climb(runner, trials[0], tally, progress)
    finalists = [best, *(each for each in trials if each is not best)][:_FINALISTS]
    ranked = _finish(runner, finalists)
    best = _spare_slots(runner, ranked[0])
    others = _others(runner, best)
    tried, pruned, untried = tally.count(runner)
    progress(f"plans in all: {_say((tried, pruned, untried))}")
    for name, count in best.plan.idle.items():
        progress(f"idle: {count} GPUs of {name} are too few for another engine")
    return PlanResult(
        problem=problem,
        plan=best.plan,
        figures=best.figures(_FULL),
        bound=best.bound,
        least=found.least,
        gap=runner.value(best, _FULL) / found.least,
        others=others,
        divisions=found.divisions,
        simulated=runner.simulated,
        tried=tried,
        pruned=pruned,
        untried=untried,
        events=runner.spent,
    )


def _say(counts: tuple[int, int, int]) -> str:
    tried, pruned, untried = counts
    return (
        f"{tried} simulated, {pruned} ruled out by their bounds, "
        f"{untried} not tried because the budget ran out"
    )


def _screen(runner: TrialRunner, found: Candidates, tally: _Tally) -> list[Trial]:
    """Simulate candidates briefly, best estimate first, skipping those that cannot win."""
    tried: list[Trial] = []
    best = float("inf")
    for plan in found.plans:
        trial = runner.trial(plan)
        if runner.worth(trial, trial.bound.step_s) >= best * _NOISE:
            tally.pruned.add(plan.key)
        elif tried and not runner.can_afford(_SHORT, until=_SCREEN):
            tally.untried.add(plan.key)
        else:
            runner.run(trial, _SHORT)
            tried.append(trial)
            best = min(best, runner.reach(trial, _SHORT))
    for key, worth in found.rest:
        (tally.pruned if worth >= best * _NOISE else tally.untried).add(key)
    return sorted(tried, key=lambda each: runner.value(each, _SHORT))


def _halve(runner: TrialRunner, trials: Sequence[Trial]) -> list[Trial]:
    """Run the better half longer: at least two, if there are two, and at most six."""
    left = list(trials)[: max(2, min(6, len(trials) // 2))]
    done: list[Trial] = []
    for trial in left:
        if done and not runner.can_afford(_LONG, until=_HALVE):
            break
        runner.run(trial, _SHORT, _LONG)
        done.append(trial)
    return sorted(done, key=lambda each: runner.value(each, _SHORT, _LONG))


def _climb(
    runner: TrialRunner, best: Trial, tally: _Tally, progress: Callable[[str], None]
) -> Trial:
    """Change one decision at a time as long as that helps and is affordable.

    A change is kept if the short run is better and so is its mean with the long one.
    """
    problem = runner.bounds.problem
    seen = {best.plan.key}
    improved = True
    while improved:
        improved = False
        value = runner.value(best, _SHORT, _LONG)
        options = [runner.trial(plan) for plan in neighbours(problem, best.plan)]
        options = [each for each in options if each.plan.key not in seen]
        options.sort(key=runner.guess)
        hopeless = runner.reach(best, _SHORT, _LONG) * _NOISE
        for trial in options:
            if runner.worth(trial, trial.bound.step_s) >= hopeless:
                tally.pruned.add(trial.plan.key)
                continue
            if not runner.can_afford(_SHORT, _LONG, until=_CLIMB):
                tally.untried.add(trial.plan.key)
                continue
            seen.add(trial.plan.key)
            runner.run(trial, _SHORT)
            if runner.value(trial, _SHORT) >= runner.value(best, _SHORT):
                continue
            runner.run(trial, _LONG)
            if runner.value(trial, _SHORT, _LONG) < value:
                progress(f"better: {trial.plan}")
                best, improved = trial, True
                break
    return best


def _finish(runner: TrialRunner, trials: Sequence[Trial]) -> list[Trial]:
    """Simulate the best at full size: as many as the budget allows, at least one."""
    done: list[Trial] = []
    for trial in trials:
        if done and not runner.can_afford(_FULL):
            break
        runner.run(trial, _FULL)
        done.append(trial)
    return sorted(done, key=lambda each: runner.value(each, _FULL))


def _spare_slots(runner: TrialRunner, best: Trial) -> Trial:
    """Remove environments as long as the step does not get longer."""
    problem = runner.bounds.problem
    step = problem.rules.batching.group_size
    for part in (0.75, 0.5):
        slots = max(step, round(best.plan.slots * part / step) * step)
        fewer = runner.trial(replace(best.plan, slots=slots))
        least = runner.value(best, _FULL) * _HARMLESS
        if runner.worth(fewer, fewer.bound.step_s) > least or not runner.can_afford(_FULL):
            return best
        runner.run(fewer, _FULL)
        if runner.value(fewer, _FULL) > least:
            return best
        best = fewer
    return best


def _others(runner: TrialRunner, best: Trial) -> tuple[tuple[Plan, float], ...]:
    """Return the other plans tried and their value relative to the chosen one's."""
    runner.run(best, _SHORT)
    base = runner.value(best, _SHORT)
    others = [
        (each.plan, runner.value(each, _SHORT) / base)
        for each in runner.tried
        if each is not best and _SHORT in each.runs
    ]
    return tuple(sorted(others, key=lambda each: each[1]))
