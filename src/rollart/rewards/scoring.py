"""Scoring: runs the function that a call names and returns only finite rewards.

A `def` function runs in the calling thread, an `async def` one is awaited; the caller limits its
time and memory. Every other fault becomes a ScoreError that names the function, what it returned
and what is expected, so a mistake never becomes a score. An error is final if a second call would
fail the same way.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from rollart.errors import ConfigError, ScoreError
from rollart.rewards.captured_output import Output, captured
from rollart.rewards.registry import check_options, load_function
from rollart.types import Reward, ScoreCall

MOST_PARTS = 256
"""Most named parts of one reward."""
MOST_NAME = 128
"""Most characters of a part's name."""
_SHOWN = 80
_WANTED = "a finite number or a Reward"


async def score(call: ScoreCall) -> tuple[Reward, ...]:
    """Return one reward for each trajectory of the call, or raise a ScoreError."""
    name = call.function
    if not call.trajectories:
        raise ScoreError(f"{name}: the call has no trajectory", is_final=True)
    if not call.is_group and len(call.trajectories) != 1:
        count = len(call.trajectories)
        raise ScoreError(f"{name} scores one trajectory, {count} were given", is_final=True)
    with captured() as output:
        returned = await _run(call, output)
        _check_output(name, output)
    if call.is_group:
        return check_rewards(returned, function=name, count=len(call.trajectories))
    return (check_reward(returned, function=name),)


async def _run(call: ScoreCall, output: Output) -> object:
    name = call.function
    try:
        function = load_function(name)
        check_options(name, call.options)
        argument = call.trajectories if call.is_group else call.trajectories[0]
        returned = function(argument, **call.options)
        return await returned if inspect.isawaitable(returned) else returned
    except ConfigError as error:
        raise ScoreError(f"{name}: {error}", is_final=True) from error
    except ScoreError as error:
        raise ScoreError(
            f"{name}: {error}", is_final=error.is_final, is_own=error.is_own
        ) from error
    except (Exception, SystemExit) as error:
        _check_output(name, output)
        message = f"{name} raised {_describe(error)}{_printed(output)}"
        raise ScoreError(message, is_own=True) from error


def check_rewards(value: object, *, function: str, count: int) -> tuple[Reward, ...]:
    """Return a group function's result as rewards; raise unless it has one for each of `count`."""
    wanted = f"a list of {count}, one for each trajectory: {_WANTED}"
    if not isinstance(value, list | tuple):
        raise _refused(function, value, wanted)
    items = cast("list[object]", value)
    if len(items) != count:
        raise _refused(function, value, wanted, note=f"of length {len(items)}")
    return tuple(check_reward(each, function=f"{function}[{n}]") for n, each in enumerate(items))


def check_reward(value: object, *, function: str) -> Reward:
    """Return a function's result as a Reward; raise unless it is a finite number or a Reward."""
    if not isinstance(value, Reward):
        return Reward(value=_number(value, function, _WANTED))
    parts = cast("object", value.parts)
    if not isinstance(parts, Mapping):
        raise _refused(function, parts, "parts as a mapping of names to numbers")
    named = cast("Mapping[object, object]", parts)
    if len(named) > MOST_PARTS:
        note = f"{len(named)} parts"
        raise _refused(function, list(named), f"at most {MOST_PARTS} parts", note=note)
    checked: dict[str, float] = {}
    for part, each in named.items():
        if not isinstance(part, str) or not part or len(part) > MOST_NAME:
            wanted = f"part names as text of 1 to {MOST_NAME} characters"
            raise _refused(function, part, wanted)
        checked[part] = _number(each, function, f"a finite number as part {part!r}")
    return replace(value, value=_number(value.value, function, _WANTED), parts=checked)


def _number(value: object, function: str, wanted: str) -> float:
    """Return a number as a float; refuse texts and arrays."""
    if not hasattr(type(value), "__float__") or getattr(value, "ndim", 0) != 0:
        raise _refused(function, value, wanted)
    try:
        number = float(cast("float", value))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise _refused(function, value, wanted) from error
    if not math.isfinite(number):
        raise _refused(function, value, wanted)
    return number


def _refused(function: str, value: object, wanted: str, note: str = "") -> ScoreError:
    kind = " ".join(filter(None, (type(value).__name__, note)))
    message = f"{function} returned {_show(value)} ({kind}); wanted {wanted}"
    return ScoreError(message, is_final=True)


def _check_output(function: str, output: Output) -> None:
    try:
        output.check()
    except ScoreError as error:
        raise ScoreError(f"{function}: {error}", is_final=True) from None


def _printed(output: Output) -> str:
    tail = output.tail()
    return f"; it printed: {_cut(tail, 400)}" if tail else ""


def _describe(error: BaseException) -> str:
    return _cut(f"{type(error).__name__}: {error}".removesuffix(": "), 400)


def _show(value: object) -> str:
    try:
        return _cut(repr(value), _SHOWN)
    except Exception:
        return f"a {type(value).__name__} without a repr"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
