"""The payload of a score call and of its answer: JSON in UTF-8, read strictly.

What is read comes from elsewhere, so nothing is guessed: a missing or unknown field, a wrong type,
a number that is not finite, a key said twice, a deep nest or too many bytes is a ScoreError that
names the place. Only the values named here are ever made, from their fields. A call that was
encoded decodes to an equal call.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Literal, NoReturn, cast, get_args, get_origin, get_type_hints

from rollart.errors import ScoreError
from rollart.types import Json, Payload, Reward, ScoreCall, Task, TokenTurns, Trajectory, Turn

FORMAT = 2
"""Told in every payload: a function deployed from another release says so instead of guessing."""
REWARD_BYTES = 2**17
"""Most bytes the answer may have for each trajectory."""

_SHOWN = 80
_VALUES = (ScoreCall, Trajectory, Task, TokenTurns, Turn, Reward)
_Reader = Callable[[Any, str], Any]


class _PayloadError(ValueError):
    """What is wrong with a payload, and where."""


def encode_call(call: ScoreCall) -> bytes:
    """Return a call as bytes."""
    _check_json(call.options, "options")
    for trajectory in call.trajectories:
        _check_json(trajectory.task.payload, "task.payload")
        if not isinstance(trajectory.payload, TokenTurns):
            raise ScoreError(
                f"a reward function that runs elsewhere scores token turns, not "
                f"{trajectory.payload.kind}: score it in the environment",
                is_final=True,
            )
    return _dump({"format": FORMAT, **_plain(call)}, f"the call of {call.function!r}")


def decode_call(payload: bytes, *, limit_bytes: int) -> ScoreCall:
    """Return the call that `payload` holds."""
    try:
        tree = _load(payload, limit_bytes)
        return cast("ScoreCall", _value_reader(ScoreCall)(_body(tree), "call"))
    except _PayloadError as error:
        raise ScoreError(f"a score call that cannot be read: {error}", is_final=True) from None


def encode_rewards(rewards: tuple[Reward, ...]) -> bytes:
    """Return the answer to a call as bytes."""
    return _dump({"format": FORMAT, "rewards": [_plain(each) for each in rewards]}, "an answer")


def decode_rewards(payload: bytes, *, count: int) -> tuple[Reward, ...]:
    """Return the `count` rewards that `payload` holds."""
    read = _value_reader(Reward)
    try:
        body = _body(_load(payload, REWARD_BYTES * max(1, count)))
        if body.keys() != {"rewards"} or not isinstance(body["rewards"], list):
            raise _PayloadError(f"wanted {{'format', 'rewards': [...]}}, got {_show(body)}")
        answers = cast("list[object]", body["rewards"])
        if len(answers) != count:
            raise _PayloadError(f"{len(answers)} rewards for {count} trajectories")
        return tuple(read(answer, f"rewards[{n}]") for n, answer in enumerate(answers))
    except _PayloadError as error:
        raise ScoreError(f"an answer that cannot be read: {error}") from None


def _plain(value: Any) -> dict[str, object]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _check_json(value: object, place: str) -> None:
    """Refuse what JSON would silently turn into something else: tuples, keys that are no text."""
    if isinstance(value, tuple):
        raise ScoreError(f"{place} holds a tuple, {_show(value)}: use a list", is_final=True)
    if isinstance(value, Mapping):
        for key, each in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise ScoreError(f"{place} has the key {_show(key)}: use str keys", is_final=True)
            _check_json(each, f"{place}.{key}")
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            _check_json(each, place)


def _default(value: object) -> object:
    """Open the values this module knows, and read-only mappings, for the JSON encoder."""
    if isinstance(value, _VALUES):
        return _plain(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    raise TypeError(f"{_show(value)} is no JSON value")


def _dump(tree: Mapping[str, object], what: str) -> bytes:
    try:
        text = json.dumps(
            tree, default=_default, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ScoreError(f"{what} cannot be sent as JSON: {error}", is_final=True) from error


def _load(payload: bytes, limit_bytes: int) -> object:
    if len(payload) > limit_bytes:
        raise _PayloadError(f"{len(payload)} bytes, more than the limit of {limit_bytes}")
    try:
        return json.loads(
            payload.decode(),
            object_pairs_hook=_unique,
            parse_float=_parse_finite,
            parse_constant=_refuse,
        )
    except RecursionError:
        raise _PayloadError("it is nested too deeply") from None
    except _PayloadError:
        raise
    except ValueError as error:
        raise _PayloadError(f"no JSON in UTF-8: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise _PayloadError(f"a key is said twice among {_show([key for key, _ in pairs])}")
    return tree


def _parse_finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise _PayloadError(f"{_show(text)} is not a finite number")


def _body(tree: object) -> dict[str, Any]:
    """Return what stands beside the format, which must be ours."""
    if not isinstance(tree, dict):
        raise _PayloadError(f"wanted a JSON object, got {_show(tree)}")
    body = cast("dict[str, Any]", tree)
    if body.get("format") != FORMAT or body["format"] is True:
        raise _PayloadError(
            f"its format is {_show(body.get('format'))}, this release reads {FORMAT}"
        )
    return {key: value for key, value in body.items() if key != "format"}


@cache
def _value_reader(cls: type) -> _Reader:
    """Make the reader of a dataclass: every field there, none besides."""
    hints = get_type_hints(cls)
    readers = {each.name: _reader(hints[each.name]) for each in fields(cls)}

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _PayloadError(f"{place} must be an object, got {_show(value)}")
        tree = cast("dict[str, Any]", value)
        if tree.keys() != readers.keys():
            odd = ", ".join(sorted(tree.keys() ^ readers.keys()))
            raise _PayloadError(
                f"{place} must have {', '.join(readers)}; missing or unknown: {odd}"
            )
        return cls(**{name: read(tree[name], f"{place}.{name}") for name, read in readers.items()})

    return read


def _reader(hint: Any) -> _Reader:
    base = getattr(hint, "__supertype__", hint)
    if base == Payload:
        base = TokenTurns  # array steps do not cross as JSON, see `encode_call`
    origin = get_origin(base)
    if origin is Literal:
        return _choice_reader(get_args(base))
    if origin is tuple:
        return _tuple_reader(getattr(get_args(base)[0], "__supertype__", get_args(base)[0]))
    if origin is Mapping:
        return _read_numbers if get_args(base)[1] is float else _read_object
    return _SCALARS.get(base) or _value_reader(base)


def _choice_reader(choices: tuple[str, ...]) -> _Reader:
    def read(value: Any, place: str) -> str:
        if value not in choices:
            raise _PayloadError(f"{place} must be one of {', '.join(choices)}, got {_show(value)}")
        return value

    return read


def _tuple_reader(item: Any) -> _Reader:
    read_item = _reader(item)

    def read(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _PayloadError(f"{place} must be a list, got {_show(value)}")
        items = cast("list[Any]", value)
        # Tokens and log-probs are most of a payload: checked all at once.
        if item in (int, float) and set(map(type, items)) <= {item}:
            return tuple(items)
        return tuple(read_item(each, f"{place}[{n}]") for n, each in enumerate(items))

    return read


def _read_int(value: Any, place: str) -> int:
    if type(value) is not int:
        raise _PayloadError(f"{place} must be an integer, got {_show(value)}")
    return value


def _read_float(value: Any, place: str) -> float:
    if type(value) not in (int, float):
        raise _PayloadError(f"{place} must be a number, got {_show(value)}")
    try:
        return float(value)
    except OverflowError:
        raise _PayloadError(f"{place} is too large for a number: {_show(value)}") from None


def _read_str(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise _PayloadError(f"{place} must be a string, got {_show(value)}")
    return value


def _read_bool(value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        raise _PayloadError(f"{place} must be true or false, got {_show(value)}")
    return value


def _read_object(value: Any, place: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise _PayloadError(f"{place} must be an object, got {_show(value)}")
    return cast("dict[str, Json]", value)


def _read_numbers(value: Any, place: str) -> dict[str, float]:
    tree = _read_object(value, place)
    return {name: _read_float(each, f"{place}.{name}") for name, each in tree.items()}


_SCALARS: dict[type, _Reader] = {
    int: _read_int,
    float: _read_float,
    str: _read_str,
    bool: _read_bool,
}


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
