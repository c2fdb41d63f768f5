"""Weighted rewards: several reward functions in one call, added with weights.

`terms` holds one object per function: `function`, and optionally `name` (default: the function's
own), `weight` (default: 1) and `options`. In `weighted_group` a function whose first parameter is
`trajectories` scores the group together; any other scores each attempt separately. Terms are
loaded through the registry, so a process that serves a network refuses a term it does not serve.

The value is the sum of weight times value. The parts keep each function's value under its name and
its own parts as "name/part". If one function fails the whole reward fails, because a sum without
one term is a different reward.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from rollart.errors import ConfigError, ScoreError
from rollart.rewards.registry import is_group_function
from rollart.rewards.scoring import score
from rollart.types import Json, Reward, ScoreCall, Trajectory


def combine(weights: Mapping[str, float], outcomes: Mapping[str, Reward | ScoreError]) -> Reward:
    """Return the weighted sum of the functions' rewards for one trajectory."""
    if not weights or weights.keys() != outcomes.keys():
        named = f"weights for {_list(weights)}, rewards of {_list(outcomes)}"
        raise ScoreError(f"{named}: each function needs both", is_final=True)
    failed = {name: each for name, each in outcomes.items() if isinstance(each, ScoreError)}
    if failed:
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        errors = failed.values()
        raise ScoreError(
            reasons,
            is_final=any(error.is_final for error in errors),
            is_own=all(error.is_own for error in errors),
        )
    parts: dict[str, float] = {}
    terms: list[float] = []
    for name, outcome in outcomes.items():
        assert isinstance(outcome, Reward)
        parts[name] = outcome.value
        parts |= {f"{name}/{part}": value for part, value in outcome.parts.items()}
        terms.append(weights[name] * outcome.value)
    value = sum(terms)
    if not math.isfinite(value):
        shown = " + ".join(f"{weights[name]} × {parts[name]} ({name})" for name in weights)
        raise ScoreError(f"the sum {shown} is not finite", is_final=True)
    return Reward(value=value, parts=parts)


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(names) or "none"


_FIELDS = ("function", "name", "weight", "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One function of several.

    Example:
        >>> Term(name="style", function="well_formed", weight=0.2, options={"tags": ["answer"]})

    """

    name: str
    function: str
    weight: float
    options: Mapping[str, Json]


async def weighted(trajectory: Trajectory, *, terms: Sequence[Json]) -> Reward:
    """Score a trajectory with each function and add the results by weight."""
    return (await _score_all((trajectory,), read_terms(terms), is_group=False))[0]


async def weighted_group(
    trajectories: tuple[Trajectory, ...], *, terms: Sequence[Json]
) -> tuple[Reward, ...]:
    """Score the attempts at a task with each function and add the results by weight."""
    return await _score_all(trajectories, read_terms(terms), is_group=True)


def read_terms(terms: object) -> tuple[Term, ...]:
    """Return the checked terms of an option."""
    if not isinstance(terms, list | tuple) or not terms:
        raise ConfigError("reward.terms", terms, "must be a list of at least one function")
    read = tuple(_read_term(each) for each in cast("list[object]", terms))
    names = [term.name for term in read]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("reward.terms.name", name, "is used twice: give each its own name")
    return read


def _read_term(value: object) -> Term:
    if not isinstance(value, Mapping):
        raise ConfigError("reward.terms", value, f"each must be an object of {', '.join(_FIELDS)}")
    term = cast("Mapping[str, Json]", value)
    for field in term:
        if field not in _FIELDS:
            raise ConfigError(f"reward.terms.{field}", term[field], f"use {', '.join(_FIELDS)}")
    function, weight, options = term.get("function"), term.get("weight", 1.0), term.get("options")
    if not isinstance(function, str):
        raise ConfigError("reward.terms.function", function, "must name a function")
    name = term.get("name", function.rpartition(":")[2])
    if not isinstance(name, str) or not name or "/" in name:
        raise ConfigError("reward.terms.name", name, "must be a name without /")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError("reward.terms.weight", weight, "must be a finite number")
    if options is not None and not isinstance(options, dict):
        raise ConfigError("reward.terms.options", options, "must be an object")
    return Term(name=name, function=function, weight=float(weight), options=options or {})


async def _score_all(
    trajectories: tuple[Trajectory, ...], terms: tuple[Term, ...], *, is_group: bool
) -> tuple[Reward, ...]:
    calls = [_calls(trajectories, term, is_group) for term in terms]
    answers = iter(await asyncio.gather(*(_attempt(call) for of_term in calls for call in of_term)))
    weights = {term.name: term.weight for term in terms}
    outcomes = {
        term.name: [outcome for _ in of_term for outcome in next(answers)]
        for term, of_term in zip(terms, calls, strict=True)
    }
    return tuple(
        combine(weights, {name: each[n] for name, each in outcomes.items()})
        for n in range(len(trajectories))
    )


def _calls(
    trajectories: tuple[Trajectory, ...], term: Term, is_group: bool
) -> tuple[ScoreCall, ...]:
    """Return one function's calls: one for the whole group, or one per attempt."""
    together = is_group_function(term.function)
    if together and not is_group:
        fix = "it compares attempts: use it in weighted_group"
        raise ConfigError("reward.terms.function", term.function, fix)
    batches = (trajectories,) if together else tuple((each,) for each in trajectories)
    return tuple(
        ScoreCall(
            function=term.function,
            options=term.options,
            trajectories=batch,
            is_group=together,
            key="",
        )
        for batch in batches
    )


async def _attempt(call: ScoreCall) -> tuple[Reward | ScoreError, ...]:
    """Return the rewards of a call, or its error for each of its trajectories."""
    try:
        return await score(call)
    except ScoreError as error:
        return (error,) * len(call.trajectories)
