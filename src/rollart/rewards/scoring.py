"""Scoring: runs the function a call names and lets nothing through but finite rewards.

The function runs in the calling thread if it is `def`, and is awaited if it is `async def`: what
it may take in time and memory is for whoever called to limit. Everything else that can be wrong
with it becomes a ScoreError here which names the function, what it returned and what is wanted, so
a mistake is never a score. An error is final if a second call must end the same way.
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
"""Named parts one reward may have."""
MOST_NAME = 128
"""Characters the name of a part may have."""
_SHOWN = 80
_WANTED = "a finite number or a Reward"


async def score(call: ScoreCall) -> tuple[Reward, ...]:
    """Return one reward for each trajectory of the call, or raise a ScoreError."""
    name = call.function
    if not call.trajectories:
        raise ScoreError(f"{name}: a call without a trajectory", is_final=True)
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
    """Return what a function said of a group if it is one reward for each of `count`."""
    wanted = f"a list of {count}, one for each trajectory: {_WANTED}"
    if not isinstance(value, list | tuple):
        raise _refused(function, value, wanted)
    items = cast("list[object]", value)
    if len(items) != count:
        raise _refused(function, value, wanted, note=f"of length {len(items)}")
    return tuple(check_reward(each, function=f"{function}[{n}]") for n, each in enumerate(items))


def check_reward(value: object, *, function: str) -> Reward:
    """Return what a function said of a trajectory if it is a finite number or a whole Reward."""
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
    """Return a number as a float; texts and arrays are none."""
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
