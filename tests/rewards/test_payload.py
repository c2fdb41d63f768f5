"""The payload round-trips exactly and refuses, by place, whatever is not one."""

import json
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewarded import attempt, call

from rollart.errors import ScoreError
from rollart.rewards.payload import (
    FORMAT,
    REWARD_BYTES,
    decode_call,
    decode_rewards,
    encode_call,
    encode_rewards,
)
from rollart.types import Reward, ScoreCall, Task, TokenTurns, Trajectory, Turn

LIMIT_BYTES = 10**6

numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=6), json_values, max_size=3)
turns = st.builds(
    Turn,
    prompt_tokens=st.lists(st.integers(0, 10**6), max_size=4).map(tuple),
    tokens=st.lists(st.integers(0, 10**6), max_size=4).map(tuple),
    logprobs=st.lists(numbers, max_size=4).map(tuple),
    versions=st.lists(st.integers(0, 99), max_size=4).map(tuple),
    observation=st.text(max_size=10),
    action=st.text(max_size=10),
    reward=numbers,
)
trajectories = st.builds(
    Trajectory,
    id=st.integers(0),
    group=st.integers(0),
    task=st.builds(
        Task,
        id=st.integers(),
        env=st.text(max_size=5),
        domain=st.text(max_size=5),
        seed=st.integers(),
        payload=objects,
    ),
    born=st.integers(0, 99),
    cost=st.integers(0),
    payload=st.builds(TokenTurns, turns=st.lists(turns, max_size=3).map(tuple)),
    stop=st.sampled_from(("terminated", "truncated", "max_turns", "max_tokens")),
    success=st.booleans(),
    reward=numbers,
)
calls = st.builds(
    ScoreCall,
    function=st.text(max_size=10),
    options=objects,
    trajectories=st.lists(trajectories, max_size=3).map(tuple),
    is_group=st.booleans(),
    key=st.text(max_size=10),
)
rewards = st.builds(Reward, value=numbers, parts=st.dictionaries(st.text(max_size=6), numbers))


@given(calls)
def test_a_call_comes_back_equal(one: ScoreCall):
    assert decode_call(encode_call(one), limit_bytes=LIMIT_BYTES) == one


def test_a_call_that_is_too_large_is_never_sent():
    one = call("exact", attempt("4"))
    size = len(encode_call(one))
    assert len(encode_call(one, limit_bytes=size)) == size
    with pytest.raises(ScoreError) as caught:
        encode_call(one, limit_bytes=size - 1)
    assert str(caught.value) == f"exact: a call of {size} bytes, more than {size - 1}"
    assert caught.value.is_final


@given(st.lists(rewards, max_size=4).map(tuple))
def test_rewards_come_back_equal(several: tuple[Reward, ...]):
    assert decode_rewards(encode_rewards(several), count=len(several)) == several


def test_a_call_is_utf8_json_with_the_names_of_its_fields():
    one = call("exact", attempt("Grüße 漢字"))
    tree = json.loads(encode_call(one))
    assert list(tree) == ["format", "function", "options", "trajectories", "is_group", "key"]
    assert "Grüße 漢字".encode() in encode_call(one)


def test_numbers_and_read_only_payloads_keep_their_values():
    payload = {"tenth": 0.1, "big": 2**80, "minus": -0.0, "none": None}
    one = attempt("", payload=payload)
    one = replace(one, task=replace(one.task, payload=MappingProxyType(payload)))
    back = decode_call(encode_call(call("exact", one)), limit_bytes=LIMIT_BYTES)
    assert repr(back.trajectories[0].task.payload) == repr(payload)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"x": (1, 2)}, r"task.payload.x holds a tuple, \(1, 2\): use a list"),
        ({"x": {1: "a"}}, "task.payload.x has the key 1: use str keys"),
        ({"x": [object()]}, "cannot be sent: call cannot be written as JSON: .*<class 'object'>"),
        ({"x": float("nan")}, "cannot be sent: 'NaN' is not a finite number"),
        ({"x": "\ud800"}, "cannot be sent: .*surrogates not allowed"),
    ],
)
def test_what_json_cannot_hold_is_refused_before_it_is_sent(payload, message):
    with pytest.raises(ScoreError, match=message) as caught:
        encode_call(call("exact", attempt("", payload=payload)))
    assert caught.value.is_final


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(encode_call(call("exact", attempt("4")))), **fields}).encode()


INFINITE = changed(options={"x": 7777}).replace(b"7777", b"[1e999]")
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "no JSON in UTF-8"),
        (b"\xff\xfe", "no JSON in UTF-8"),
        (DEEP, "nested too deeply"),
        (b"[]", r"wanted a JSON object, got \[\]"),
        (b"{}", "its format is None, this release reads 2"),
        (changed(format=3), "its format is 3, this release reads 2"),
        (changed(format=True), "its format is True"),
        (b'{"format":2,"key":1,"key":1}', "a key is written twice"),
        (b'{"format":2,"x":NaN}', "'NaN' is not a finite number"),
        (b'{"format":2,"x":-Infinity}', "'-Infinity' is not a finite number"),
        (INFINITE, "'Infinity' is not a finite number"),
        (b'{"format":2,"function":"exact"}', "call.options is missing"),
        (changed(extra=1), "call.extra is unknown"),
        (changed(function=3), "call.function must be a string, got 3"),
        (changed(options=[]), r"call.options must be an object, got \[\]"),
        (changed(is_group=1), "call.is_group must be true or false, got 1"),
        (changed(trajectories={}), r"call.trajectories must be a list, got \{\}"),
        (changed(trajectories=[7]), r"call.trajectories\[0\] must be an object, got 7"),
    ],
)
def test_what_is_no_call_is_refused_by_place(payload: bytes, message: str):
    with pytest.raises(ScoreError, match=message) as caught:
        decode_call(payload, limit_bytes=LIMIT_BYTES)
    assert caught.value.is_final


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("id", 1.0, r"trajectories\[0\].id must be an integer, got 1.0"),
        ("id", True, r"trajectories\[0\].id must be an integer, got True"),
        ("reward", "1", r"trajectories\[0\].reward must be a number, got '1'"),
        ("reward", 10**400, r"trajectories\[0\].reward must be a finite number, got 1000"),
        ("stop", "tired", r"trajectories\[0\].stop must be one of terminated, .*, got 'tired'"),
        (
            "payload",
            {"kind": "token_turns", "turns": [{}]},
            r"payload.token_turns.turns\[0\].prompt_tokens is missing",
        ),
        (
            "payload",
            {"kind": "array_steps", "turns": []},
            r"payload.array_steps.observations is missing",
        ),
    ],
)
def test_a_wrong_field_of_a_trajectory_is_named(field: str, value: object, message: str):
    tree = json.loads(encode_call(call("exact", attempt("4"))))
    tree["trajectories"][0][field] = value
    with pytest.raises(ScoreError, match=message):
        decode_call(json.dumps(tree).encode(), limit_bytes=LIMIT_BYTES)


def test_a_wrong_token_is_named_by_its_place():
    tree = json.loads(encode_call(call("exact", attempt("4"))))
    tree["trajectories"][0]["payload"]["turns"][0]["tokens"] = [1, "2"]
    with pytest.raises(ScoreError, match=r"turns\[0\].tokens\[1\] must be an integer, got '2'"):
        decode_call(json.dumps(tree).encode(), limit_bytes=LIMIT_BYTES)


def test_a_call_over_the_limit_is_not_even_parsed():
    payload = encode_call(call("exact", attempt("x" * 1000)))
    with pytest.raises(ScoreError, match=f"{len(payload)} bytes, more than the limit of 1000"):
        decode_call(payload, limit_bytes=1000)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"<html>502 Bad Gateway</html>", "no JSON in UTF-8"),
        (b'{"format":2}', "answer.rewards is missing"),
        (b'{"format":2,"rewards":3}', "answer.rewards must be a list, got 3"),
        (b'{"format":2,"rewards":[]}', "0 rewards for 1 trajectories"),
        (b'{"format":2,"rewards":[1.0]}', r"rewards\[0\] must be an object, got 1.0"),
        (b'{"format":2,"rewards":[{"value":1}]}', r"rewards\[0\].parts is missing"),
        (b'{"format":2,"rewards":[{"value":null,"parts":{}}]}', "value must be a number, got None"),
        (b'{"format":2,"rewards":[{"value":true,"parts":{}}]}', "value must be a number, got True"),
        (b'{"format":2,"rewards":[{"value":NaN,"parts":{}}]}', "'NaN' is not a finite number"),
        (b'{"format":2,"rewards":[{"value":1,"parts":{"a":"b"}}]}', "parts.a must be a number"),
        (b" " * (REWARD_BYTES + 1), "more than the limit of 131072"),
    ],
)
def test_what_is_no_answer_is_refused_and_may_be_asked_for_again(payload: bytes, message: str):
    with pytest.raises(ScoreError, match=message) as caught:
        decode_rewards(payload, count=1)
    assert not caught.value.is_final


def test_an_answer_that_is_not_finite_is_never_sent():
    with pytest.raises(
        ScoreError, match="an answer cannot be sent: 'Infinity' is not a finite number"
    ):
        encode_rewards((Reward(value=float("inf")),))


def test_the_format_is_two():
    assert FORMAT == 2
