"""The options of rewards: which functions score a task's attempts, and what they count for.

A task's reward is the sum of weight × value over its parts. Functions are found, and their options
checked, before a run starts (`check_rewards`); what is wrong is named by its key in the config.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollart.errors import ConfigError
from rollart.rewards.loading import check_options, is_group_function
from rollart.rewards.weighted import read_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPart:
    """One part of a task's reward."""

    function: str
    """A shipped function's name, or "module:function" of your own."""
    weight: float = 1.0
    """What its value is multiplied by before the parts are added up."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the function."""

    def __post_init__(self) -> None:
        if not self.function:
            fix = 'name a shipped function, or "module:function"'
            raise ConfigError("rewards.function", self.function, fix)
        if not math.isfinite(self.weight):
            raise ConfigError("rewards.weight", self.weight, "must be a finite number")


def check_parts(parts: Mapping[str, RewardPart]) -> None:
    """Refuse names of parts that could not be told apart in the metrics."""
    for name in parts:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            fix = "name parts with letters, digits, '_' and '-'"
            raise ConfigError("tasks.rewards", name, fix)
    if parts and not any(part.weight for part in parts.values()):
        weights = {name: part.weight for name, part in parts.items()}
        raise ConfigError("tasks.rewards", weights, "at least one weight must not be 0")


def check_rewards(task: str, parts: Mapping[str, RewardPart]) -> None:
    """Find a task's functions and see that they take their options."""
    for name, part in parts.items():
        try:
            check_options(part.function, part.options)
            if "terms" in part.options:
                for term in read_terms(part.options["terms"]):
                    check_options(term.function, term.options)
            if isinstance(part.options.get("judge"), Mapping):
                judge_pool(part.options)
        except ConfigError as error:
            key = error.field.removeprefix("reward.")
            raise ConfigError(
                f"tasks.{task}.rewards.{name}.{key}", error.value, error.fix
            ) from None


def are_compared(parts: Mapping[str, RewardPart]) -> bool:
    """Say whether any part compares the attempts at a task, so that all wait for the last."""
    return any(is_group_function(part.function) for part in parts.values())


def judge_pool(options: Mapping[str, Any]) -> str:
    """Return the pool in which a function with these options asks its judge; "" if it has none."""
    judge = options.get("judge")
    if not isinstance(judge, Mapping):
        return ""
    from rollart.rewards.chat import read_judge  # noqa: PLC0415 loads httpx

    described: Mapping[str, Any] = judge
    where = read_judge(described)
    return f"{where.pool}, {where.concurrency} questions at once in each process"
