"""Search: from a problem to a plan, first by bounds, then by simulation; and why this plan.

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
from rollart.planning.plan import ANYWHERE, Plan
from rollart.planning.problem import Problem
from rollart.planning.trials import Scale, Trial, TrialFigures, TrialRunner
from rollart.types import Json

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
        idle = f"1 GPU of {name} is" if count == 1 else f"{count} GPUs of {name} are"
        progress(f"idle: {idle} too few for another engine")
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


_BUSY = 0.85
"""A resource that is busier than this is the bottleneck."""
_PARTS = {
    "training": "training",
    "generation": "the busiest rollout pool",
    "window": "the time of a group: its slowest member, its training and its weight update",
    "slots": "the environments",
}


def bottleneck(answer: PlanResult) -> str:
    """Return the name of what the step waits for."""
    figures = answer.figures
    shares = {"training": figures.training, **figures.utilisation}
    busiest = max(shares, key=lambda name: shares[name])
    if shares[busiest] >= _BUSY:
        return busiest
    parts = {name: answer.bound.parts[name] for name in ("window", "slots")}
    return max(parts, key=lambda name: parts[name])


def explain(answer: PlanResult) -> list[str]:
    """Return sentences that say why the plan was chosen."""
    return [
        _say_split(answer),
        *_say_tasks(answer.plan),
        _say_bottleneck(answer),
        *_say_others(answer),
        _say_gap(answer),
    ]


def to_json(answer: PlanResult) -> dict[str, Json]:
    """Return an answer as one JSON object: the plan, its figures, and how it was found."""
    plan, figures = answer.plan, answer.figures
    return {
        "train": {"pool": plan.train.name, "gpus": plan.train_gpus},
        "rollout": [
            {
                "pool": share.pool.name,
                "gpus": share.gpus,
                "tp": share.tp,
                "prefill": share.prefill,
                "decode": share.decode,
            }
            for share in plan.rollout
        ],
        "serves": {task: pool or "any" for task, pool in plan.serves.items()},
        "alpha": plan.alpha,
        "extra_groups": plan.extra_groups,
        "environments": plan.slots,
        "step_s": figures.step_s,
        "tokens_per_s": figures.tokens_per_s,
        "cost_per_step": answer.cost,
        "utilisation": {"training": figures.training, **figures.utilisation},
        "bottleneck": bottleneck(answer),
        "bound_s": answer.bound.step_s,
        "gap": answer.gap,
        "divisions": answer.divisions,
        "simulated": answer.simulated,
        "tried": answer.tried,
        "pruned": answer.pruned,
        "untried": answer.untried,
        "events": answer.events,
        "explanation": list[Json](explain(answer)),
    }


def _say_split(answer: PlanResult) -> str:
    left = answer.plan.unused(answer.problem)
    fits = {pool.name for pool in answer.problem.pools if answer.problem.tps(pool)}
    dear = ", ".join(f"{count} {name}" for name, count in left.items() if name in fits)
    small = ", ".join(f"{count} {name}" for name, count in left.items() if name not in fits)
    more = f" Not used, because they would cost more than they gain: {dear}." if dear else ""
    more += f" Not used, because the model does not fit on them: {small}." if small else ""
    idle = ", ".join(f"{count} {name}" for name, count in answer.plan.idle.items())
    rest = f" Idle, because they are too few for another engine: {idle}." if idle else ""
    return f"{answer.plan}.{more}{rest}"


def _say_tasks(plan: Plan) -> list[str]:
    if len(plan.rollout) == 1:
        return []
    lines: list[str] = []
    for share in plan.rollout:
        tasks = [task for task, pool in plan.serves.items() if pool == share.pool.name]
        if tasks:
            lines.append(f"{share.pool.name} serves {', '.join(tasks)}.")
    rest = [task for task, pool in plan.serves.items() if pool == ANYWHERE]
    if rest:
        lines.append(f"{', '.join(rest)} go to the least busy engine.")
    return lines


def _say_bottleneck(answer: PlanResult) -> str:
    figures, name = answer.figures, bottleneck(answer)
    used = ", ".join(f"{pool} {share:.0%}" for pool, share in figures.utilisation.items())
    busy = f"training GPUs train {figures.training:.0%} of the time, engines are busy {used}"
    if name == "window":
        plan = answer.plan
        steps = answer.problem.window_steps(alpha=plan.alpha, extra_groups=plan.extra_groups)
        return (
            f"The step waits for episodes: {busy}. With alpha = {plan.alpha} only {steps:g} "
            "batches may be outstanding, and each group takes as long as its slowest member."
        )
    if name == "slots":
        return f"The step waits for environments: {busy}. More environments would shorten it."
    return f"The step waits for {name}: {busy}."


def _say_others(answer: PlanResult) -> list[str]:
    """Compare with the best plan that differs in each decision."""
    plan, said = answer.plan, set[str]()
    lines: list[str] = []
    for other, ratio in answer.others:
        what = _difference(answer, other)
        if what is None or what in said:
            continue
        said.add(what)
        lines.append(f"{what} would {_effect(answer, ratio)}.")
    if not lines:
        lines.append(f"No plan that differs from {plan} in one decision was worth simulating.")
    return lines[:6]


def _difference(answer: PlanResult, other: Plan) -> str | None:
    """Describe how another plan differs; None if it differs in more than two decisions."""
    plan = answer.plan
    changes: list[str] = []
    if (other.train.name, other.train_gpus) != (plan.train.name, plan.train_gpus):
        changes.append(_moved(plan, other))
    changes += _engines(plan, other)
    if dict(other.serves) != dict(plan.serves):
        moved = {task: pool for task, pool in other.serves.items() if pool != plan.serves[task]}
        homes = ", ".join(
            f"{task} {f'on {pool}' if pool else 'anywhere'}" for task, pool in moved.items()
        )
        changes.append(f"serving {homes}")
    if other.extra_groups != plan.extra_groups:
        changes.append(f"{other.extra_groups} redundant groups")
    if other.alpha != plan.alpha:
        changes.append(f"alpha = {other.alpha}")
    if other.slots < plan.slots and not changes:
        changes.append(f"{other.slots} environments")
    if not 1 <= len(changes) <= 2:
        return None
    text = " and ".join(changes)
    return text[0].upper() + text[1:]


def _moved(plan: Plan, other: Plan) -> str:
    if other.train.name != plan.train.name:
        return f"training on {other.train_gpus} {other.train.name}"
    gpus = other.train_gpus - plan.train_gpus
    more, name = "more" if gpus > 0 else "fewer", plan.train.name
    nodes, rest = divmod(abs(gpus), plan.train.node)
    if rest:
        return f"{abs(gpus)} {more} {name} for training"
    return f"{nodes} {more} {'node' if nodes == 1 else 'nodes'} of {name} for training"


def _engines(plan: Plan, other: Plan) -> list[str]:
    mine = {share.pool.name: share for share in plan.rollout}
    changes: list[str] = []
    for share in other.rollout:
        own = mine.get(share.pool.name)
        if own is None:
            changes.append(f"rolling out on {share.gpus} {share.pool.name} too")
        elif (own.prefill, own.decode) != (share.prefill, share.decode):
            split = f"{share.prefill}P{share.decode}D" if share.is_split else "no split"
            changes.append(f"{split} on {share.pool.name}")
        elif own.tp != share.tp:
            changes.append(f"tp {share.tp} on {share.pool.name}")
        elif own.gpus != share.gpus and share.pool.name != plan.train.name:
            changes.append(f"{share.gpus} {share.pool.name} for rollout")
    return changes


def _effect(answer: PlanResult, ratio: float) -> str:
    what = "cost" if answer.problem.objective == "cost" else "take"
    if abs(ratio - 1) < 0.01:
        return f"{what} the same"
    return f"{what} {abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less in a short run'}"


def _say_gap(answer: PlanResult) -> str:
    parts = ", ".join(f"{name} {part:.0f} s" for name, part in answer.bound.parts.items())
    return (
        f"{answer.divisions} divisions of the GPUs were bounded. Of all plans considered, "
        f"{answer.tried} were simulated ({answer.simulated} simulations), {answer.pruned} ruled "
        f"out by their bounds and {answer.untried} not tried because the budget ran out. The "
        f"plan is {answer.gap:.2f} times the lowest bound of all plans. Its own bound is set by "
        f"{_PARTS[answer.bound.tightest]} ({parts})."
    )
