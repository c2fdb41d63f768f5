"""The Env contract: checks what an environment returned, the one place where rubbish is named.

What a user wrote is also asked, before it is called, whether it can be called that way. A value
that passes has exactly the types of the Env port; anything else raises an EnvError which says what
was returned and what is wanted, so it becomes data on a trajectory and no reward.
"""

import inspect
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from rollart.errors import EnvError, RollartError
from rollart.types import (
    ArrayValue,
    Failure,
    FailureKind,
    Json,
)


class AttemptError(RollartError):
    """An attempt cannot continue; carries the failure as data."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        self.failure = Failure(kind=kind, message=message)
        super().__init__(message)


class UnreadableError(RollartError):
    """The user's parser cannot read what the policy wrote: an outcome, not a failure."""

    def __init__(self, message: str, *, is_env_lost: bool = False) -> None:
        self.is_env_lost = is_env_lost
        """Whether the parser never answered, so that the thread of the environment is lost too."""
        super().__init__(message)


def where_raised(error: BaseException, env: object) -> str:
    """Return the line of the environment's own file that raised, or else the innermost one."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    own = getattr(sys.modules.get(type(env).__module__), "__file__", None)
    frame = next((each for each in reversed(frames) if each.filename == own), frames[-1])
    return f" ({Path(frame.filename).name}:{frame.lineno})"


_SHOWN = 80
_MOST_CHARACTERS = 1 << 24
"""Longest observation that is looked at; what a longer one says beyond is cut off.

No episode has room for it: its text alone would be 131,072 of the longest tokens.
"""
_ARRAYS = "numpy array"
_RESET = "reset() must return (observation: str, info: dict)"
_STEP = (
    "step() must return (observation: str, reward: float, terminated: bool, truncated: bool, "
    "info: dict)"
)


def gives_arrays(env: object) -> bool:
    """Say whether an environment's observations are arrays instead of text."""
    return bool(getattr(env, "arrays", False))


def check_reset(value: object, *, arrays: bool = False) -> tuple[Any, dict[str, Json]]:
    """Return what `reset` returned if it keeps the contract.

    `arrays`: observations are numpy arrays, or dicts of them.
    """
    wanted = _RESET.replace("str", _ARRAYS) if arrays else _RESET
    observation, info = _check_tuple(value, 2, wanted)
    check = _check_arrays if arrays else _check_observation
    return check(observation, wanted), _check_info(info, wanted)


def check_step(
    value: object, *, arrays: bool = False
) -> tuple[Any, float, bool, bool, dict[str, Json]]:
    """Return what `step` returned if it keeps the contract."""
    wanted = _STEP.replace("str", _ARRAYS) if arrays else _STEP
    observation, reward, terminated, truncated, info = _check_tuple(value, 5, wanted)
    check = _check_arrays if arrays else _check_observation
    return (
        check(observation, wanted),
        _check_reward(reward),
        _check_flag(terminated, "terminated"),
        _check_flag(truncated, "truncated"),
        _check_info(info, wanted),
    )


def refuse_call(
    function: Callable[..., object], name: str, arguments: Sequence[str], *, is_method: bool = False
) -> str:
    """Say why a user's function cannot be called so; empty if it can, or has no signature.

    A decorated one is asked for the signature it is called by, not for what it wraps.
    """
    if inspect.isasyncgenfunction(function) or _is_generator(function):
        return f"{name} yields, so calling it gives a generator: return the value instead"
    own = ("self", *arguments) if is_method else tuple(arguments)
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*own)
    except TypeError:
        wanted = f"{name}({', '.join(arguments)})"
        fix = f"write def {name}({', '.join(own)})"
        return f"{name}{_show_signature(signature)} cannot be called as {wanted}: {fix}"
    return ""


def _is_generator(function: Callable[..., object]) -> bool:
    """Say whether a function yields and is no old form of a coroutine, which also does."""
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    return inspect.isgeneratorfunction(function) and not flags & inspect.CO_ITERABLE_COROUTINE


def _show_signature(signature: inspect.Signature) -> str:
    empty = inspect.Parameter.empty
    bare = [each.replace(annotation=empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=empty))


def _check_tuple(value: object, length: int, wanted: str) -> tuple[object, ...]:
    if not isinstance(value, tuple):
        raise EnvError(f"{wanted}; it returned {_show(value)}")
    items = cast("tuple[object, ...]", value)
    if len(items) != length:
        raise EnvError(f"{wanted}; it returned a tuple of {len(items)}: {_show(items)}")
    return items


def _check_observation(value: object, wanted: str) -> str:
    if not isinstance(value, str):
        raise EnvError(f"{wanted}; the observation was {_show(value)}")
    if len(value) > _MOST_CHARACTERS:
        value = value[:_MOST_CHARACTERS]
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            problem = f"{wanted}; the observation is no Unicode text: {error.reason}"
            raise EnvError(f"{problem} at {error.start}") from None
    return value


def _check_arrays(value: object, wanted: str) -> object:
    """Accept an array of finite numbers, or some by name."""
    parts = cast("dict[object, object]", value) if isinstance(value, dict) else {"": value}
    for name, part in parts.items():
        if not isinstance(name, str) or not isinstance(part, ArrayValue):
            raise EnvError(f"{wanted}; the observation was {_show(value)}")
        sums = cast("Any", part).sum()  # NaN and infinity survive a sum
        if not math.isfinite(sums):
            place = f"[{name!r}]" if name else ""
            raise EnvError(f"the observation{place} holds numbers that are not finite")
    return value


def _check_reward(value: object) -> float:
    if isinstance(value, bool) or not hasattr(type(value), "__float__"):
        raise EnvError(f"{_STEP}; the reward was {_show(value)}")
    try:
        reward = float(cast("float", value))
    except Exception as error:
        problem = f"{_STEP}; the reward was {_show(value)}"
        raise EnvError(f"{problem}: {type(error).__name__}: {error}") from None
    if not math.isfinite(reward):
        raise EnvError(f"step() must return a finite reward; it was {_show(value)}")
    return reward


def _check_flag(value: object, name: str) -> bool:
    if not _is_flag(value):
        raise EnvError(f"{_STEP}; {name} was {_show(value)}")
    return bool(value)


def _is_flag(value: object) -> bool:
    """Accept bool and numpy's bool, nothing that is merely true."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _check_info(value: object, wanted: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise EnvError(f"{wanted}; the info was {_show(value)}")
    info = cast("dict[str, Json]", value)
    actions = info.get("actions")
    if actions is not None and not _are_texts(actions):
        raise EnvError(f"info['actions'] must be a list of str; it was {_show(actions)}")
    success = info.get("success")
    if success is not None and not _is_flag(success):
        raise EnvError(f"info['success'] must be a bool; it was {_show(success)}")
    return info


def _are_texts(value: object) -> bool:
    items = cast("list[object]", value) if isinstance(value, list | tuple) else [None]
    return all(isinstance(item, str) for item in items)


def _show(value: object) -> str:
    """Return a value's type and its shortened repr."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"whose repr raises {type(error).__name__}"
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return f"{type(value).__name__} {shown}"
