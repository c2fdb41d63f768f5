"""Explanation: the planner's result in sentences, and as one JSON object."""

from rollart.planning.plan import ANYWHERE, Plan
from rollart.planning.search import PlanResult
from rollart.types import Json

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
