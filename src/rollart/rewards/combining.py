"""Combining: several functions' rewards of one trajectory as one.

The value is the sum of weight times value. The parts keep what it was made of: every function's
value under its name, and its own parts as "name/part". One function that failed fails the whole:
a sum that lacks a term is a different reward, not a worse one.

Pure.
"""

import math
from collections.abc import Mapping

from rollart.errors import ScoreError
from rollart.types import Reward


def combine(weights: Mapping[str, float], outcomes: Mapping[str, Reward | ScoreError]) -> Reward:
    """Return the weighted sum of what the functions, by name, said of one trajectory."""
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
