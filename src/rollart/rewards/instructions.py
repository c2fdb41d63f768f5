"""Instruction following: how many of a task's verifiable instructions an answer keeps.

A task's payload holds a list of objects: `check` names one of the counts or claims of
`instruction_checks`, the other fields are its arguments. The value is 1 if all are kept and else 0
(`mode = "strict"`), or the share that is kept (`mode = "fraction"`). The parts tell each check, by
name and place.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Literal, TypeAlias, cast

from rollart.errors import ConfigError, ScoreError
from rollart.rewards.answers import Source, find_answer, get_expected, wrong_payload
from rollart.rewards.instruction_checks import CLAIMS, COUNTS, keeps
from rollart.types import Json, Reward, Trajectory

Mode: TypeAlias = Literal["strict", "fraction"]

_CHECKS = sorted(COUNTS | CLAIMS)


def instructions(
    trajectory: Trajectory,
    *,
    key: str = "instructions",
    mode: Mode = "strict",
    source: Source = "last",
    pattern: str | None = None,
    checks: Sequence[Json] | None = None,
) -> Reward:
    """Score an answer by the instructions of its task, or by `checks` for every task alike."""
    if mode not in ("strict", "fraction"):
        raise ConfigError("reward.options.mode", mode, "use strict or fraction")
    wanted = get_expected(trajectory, key) if checks is None else list(checks)
    if not isinstance(wanted, list) or not wanted:
        raise wrong_payload(key, wanted, 'a list of {"check": name, …}')
    text = find_answer(trajectory, source=source, pattern=pattern) or ""
    parts = {f"{n}.{_name(each)}": float(_is_kept(text, each)) for n, each in enumerate(wanted)}
    share = sum(parts.values()) / len(parts)
    return Reward(value=share if mode == "fraction" else float(share == 1.0), parts=parts)


def _name(instruction: Json) -> str:
    name = instruction.get("check") if isinstance(instruction, dict) else None
    if not isinstance(name, str) or name not in _CHECKS:
        near = get_close_matches(str(name), _CHECKS, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        known = ", ".join(_CHECKS)
        message = f"no check is called {name!r} in {instruction!r}; {guess}known: {known}"
        raise ScoreError(message, is_final=True)
    return name


def _is_kept(text: str, instruction: Json) -> bool:
    """Say whether a text keeps an instruction; an empty text keeps none, as nothing was said."""
    name = _name(instruction)
    given = cast("Mapping[str, Json]", instruction)
    arguments = {option: value for option, value in given.items() if option != "check"}
    try:
        is_kept = keeps(text, name, arguments)
    except (TypeError, ValueError) as error:
        message = f"the check {name} cannot be used with {arguments}: {error}"
        raise ScoreError(message, is_final=True) from error
    return is_kept and bool(text.strip())
