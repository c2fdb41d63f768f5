"""The payload of a score call and of its answer: JSON in UTF-8, read strictly.

A payload comes from another process, often on another machine, so nothing is guessed: a missing or
unknown field, a wrong type, a number that is not finite, a key written twice, a deep nest or too
many bytes is a ScoreError that names the place. A call that was encoded decodes to an equal call.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from rollart.errors import ScoreError
from rollart.serialization.codec import Codec, CodecError, check_text, show
from rollart.types import Reward, ScoreCall, TokenTurns

FORMAT = 2
"""Written in every payload: a function deployed from another release says so, not guesses."""
REWARD_BYTES = 2**17
"""Most bytes the answer may have for each trajectory."""

_HEAD = b'{"format":%d,' % FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The rewards of a call, in the order of its trajectories."""

    rewards: tuple[Reward, ...]


_CALL = Codec[ScoreCall](ScoreCall, name="call", is_foreign=True)
_ANSWER = Codec[_Answer](_Answer, name="answer", is_foreign=True)


def encode_call(call: ScoreCall, *, limit_bytes: int | None = None) -> bytes:
    """Return a call as bytes, of which there may be at most `limit_bytes`."""
    _check_json(call.options, "options")
    for trajectory in call.trajectories:
        _check_json(trajectory.task.payload, "task.payload")
        if not isinstance(trajectory.payload, TokenTurns):
            raise ScoreError(
                f"a reward function that runs elsewhere scores token turns, not "
                f"{trajectory.payload.kind}: score it in the environment",
                is_final=True,
            )
    try:
        payload = _HEAD + _CALL.encode(call)[1:]
    except CodecError as error:
        what = f"the call of {call.function!r}"
        raise ScoreError(f"{what} cannot be sent: {error}", is_final=True) from error
    if limit_bytes is not None and len(payload) > limit_bytes:
        message = f"{call.function}: a call of {len(payload)} bytes, more than {limit_bytes}"
        raise ScoreError(message, is_final=True)
    return payload


def decode_call(payload: bytes, *, limit_bytes: int) -> ScoreCall:
    """Return the call that `payload` holds."""
    try:
        return _CALL.decode(_body(payload, limit_bytes))
    except CodecError as error:
        raise ScoreError(f"a score call that cannot be read: {error}", is_final=True) from None


def encode_rewards(rewards: tuple[Reward, ...]) -> bytes:
    """Return the answer to a call as bytes."""
    try:
        return _HEAD + _ANSWER.encode(_Answer(rewards=rewards))[1:]
    except CodecError as error:
        raise ScoreError(f"an answer cannot be sent: {error}", is_final=True) from error


def decode_rewards(payload: bytes, *, count: int) -> tuple[Reward, ...]:
    """Return the `count` rewards that `payload` holds."""
    try:
        rewards = _ANSWER.decode(_body(payload, REWARD_BYTES * max(1, count))).rewards
    except CodecError as error:
        raise ScoreError(f"an answer that cannot be read: {error}") from None
    if len(rewards) != count:
        message = f"{len(rewards)} rewards for {count} trajectories"
        raise ScoreError(f"an answer that cannot be read: {message}")
    return rewards


def _body(payload: bytes, limit_bytes: int) -> bytes:
    """Return the JSON object without its format, which must be ours."""
    if len(payload) > limit_bytes:
        raise CodecError(f"{len(payload)} bytes, more than the limit of {limit_bytes}")
    if payload.startswith(_HEAD):  # as `encode_call` writes it: nothing has to be parsed for it
        return b"{" + payload[len(_HEAD) :]
    return _reordered(payload)


def _reordered(payload: bytes) -> bytes:
    """Return the same for a payload that another program wrote, or passed on."""
    check_text(payload)
    tree: Any = json.loads(payload)
    if not isinstance(tree, dict):
        raise CodecError(f"wanted a JSON object, got {show(tree)}")
    body = cast("dict[str, Any]", tree)
    written = body.pop("format", None)
    if type(written) is not int or written != FORMAT:
        raise CodecError(f"its format is {show(written)}, this release reads {FORMAT}")
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _check_json(value: object, place: str) -> None:
    """Refuse what JSON would silently turn into something else: tuples, keys that are no text."""
    if isinstance(value, tuple):
        raise ScoreError(f"{place} holds a tuple, {show(value)}: use a list", is_final=True)
    if isinstance(value, Mapping):
        for key, each in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise ScoreError(f"{place} has the key {show(key)}: use str keys", is_final=True)
            _check_json(each, f"{place}.{key}")
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            _check_json(each, place)
