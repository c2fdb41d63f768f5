"""Shaping rewards: small rewards and penalties for an answer's form, added to its correctness.

`well_formed` returns 1 or 0; `length` and `repetition` return a penalty between -1 and 0.
"""

import math
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from rollart.errors import ConfigError
from rollart.rewards.answers import Source, compile_pattern, find_answer
from rollart.types import Trajectory

Shape: TypeAlias = Literal["linear", "cosine"]
Unit: TypeAlias = Literal["tokens", "characters", "words"]


def well_formed(
    trajectory: Trajectory,
    *,
    tags: Sequence[str] = ("think", "answer"),
    pattern: str | None = None,
    source: Source = "last",
) -> float:
    """Return 1 if the answer consists of these tags in order, each once, or matches a pattern."""
    text = (find_answer(trajectory, source=source) or "").strip()
    if pattern is not None:
        return float(compile_pattern(pattern).fullmatch(text) is not None)
    if not tags or not all(re.fullmatch(r"[\w-]+", tag) for tag in tags):
        raise ConfigError("reward.options.tags", tags, "must be names such as think and answer")
    form = r"\s*".join(f"<{tag}>.*?</{tag}>" for tag in tags)
    once = all(text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1 for tag in tags)
    return float(once and compile_pattern(form).fullmatch(text) is not None)


def length(
    trajectory: Trajectory,
    *,
    limit: int,
    buffer: int,
    shape: Shape = "linear",
    unit: Unit = "tokens",
    source: Source = "all",
) -> float:
    """Return a penalty that grows from 0 to -1 over the last `buffer` units before `limit`.

    Linear is the soft overlong punishment of DAPO: with s = limit - buffer, 0 up to s, then
    (s - n) / buffer, and -1 beyond the limit. Cosine has the same end points and a smooth start
    and end.
    """
    if not 0 < buffer <= limit:
        raise ConfigError("reward.options.buffer", buffer, f"must be from 1 to limit = {limit}")
    share = (_measure(trajectory, unit, source) - (limit - buffer)) / buffer
    share = min(max(share, 0.0), 1.0)
    if shape == "linear":
        return -share
    if shape == "cosine":
        return (math.cos(math.pi * share) - 1) / 2
    raise ConfigError("reward.options.shape", shape, "use linear or cosine")


def repetition(
    trajectory: Trajectory, *, n: int = 3, most: float = 1.0, source: Source = "last"
) -> float:
    """Return the share of `n`-grams that repeat an earlier one, times `-most`."""
    if n < 1:
        raise ConfigError("reward.options.n", n, "must be at least 1")
    words = (find_answer(trajectory, source=source) or "").lower().split()
    runs = [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]
    return -most * (1 - len(set(runs)) / len(runs)) if runs else 0.0


def _measure(trajectory: Trajectory, unit: Unit, source: Source) -> int:
    if unit == "tokens":
        turns = trajectory.turns if source == "all" else trajectory.turns[-1:]
        return sum(len(turn.tokens) for turn in turns)
    text = find_answer(trajectory, source=source) or ""
    if unit == "characters":
        return len(text)
    if unit == "words":
        return len(text.split())
    raise ConfigError("reward.options.unit", unit, "use tokens, characters or words")
