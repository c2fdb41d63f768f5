"""The options of rewards: which functions score a task's attempts, and what they count for.

A task's reward is the sum of weight × value over its parts. Functions are found, and their options
checked, before a run starts (`check_rewards`); what is wrong is named by its key in the config.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollart.errors import ConfigError
from rollart.rewards.registry import check_options, is_group_function, shipped_name
from rollart.rewards.weighted import read_terms

if TYPE_CHECKING:
    from rollart.rewards.chat import Judge

_SUMS = ("weighted", "weighted_group")
_JUDGES = ("judge", "pairwise")


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
            for function, options in walk(part.function, part.options):
                check_options(function, options)
                judge_pool(function, options)
        except ConfigError as error:
            key = error.field.removeprefix("reward.")
            raise ConfigError(
                f"tasks.{task}.rewards.{name}.{key}", error.value, error.fix
            ) from None


def walk(function: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give a function with its options, then those it adds up, if it is a shipped sum."""
    yield function, options
    if shipped_name(function) in _SUMS:
        for term in read_terms(options.get("terms")):
            yield from walk(term.function, term.options)


def are_compared(parts: Mapping[str, RewardPart]) -> bool:
    """Say whether any part compares the attempts at a task, so that all wait for the last."""
    return any(is_group_function(part.function) for part in parts.values())


def judge_pools(function: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the pools in which a function, and those it adds up, ask their judges."""
    pools = [judge_pool(*each) for each in walk(function, options)]
    return tuple(dict.fromkeys(filter(None, pools)))


def judge_pool(function: str, options: Mapping[str, Any]) -> str:
    """Return the pool in which a shipped judge asks; "" for any other function."""
    if shipped_name(function) not in _JUDGES:
        return ""
    where = _read_judge(options)
    return f"{where.pool}, {where.concurrency} questions at once in each process"


def judge_engine(function: str, options: Mapping[str, Any]) -> str:
    """Return the name of the engine that a shipped judge asks; "" if it asks none."""
    return _read_judge(options).engine if shipped_name(function) in _JUDGES else ""


def _read_judge(options: Mapping[str, Any]) -> "Judge":
    judge = options.get("judge")
    if not isinstance(judge, Mapping):
        fix = "must be a table that says where to ask: base_url or engine"
        raise ConfigError("reward.options.judge", judge, fix)
    from rollart.rewards.chat import read_judge  # noqa: PLC0415 loads httpx

    described: Mapping[str, Any] = judge
    return read_judge(described)
