import contextlib
import math
import os
import struct
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rollart.serialization.codec import CodecError
from rollart.serialization.frames import write_pieces
from rollart.serialization.values import decode, encode, read_frame
from rollart.types import (
    Completion,
    Sampling,
    StepReport,
    Task,
    TrajectoryId,
    Turn,
    Version,
    token_trajectory,
)

any_array = st.sampled_from(
    ["<f4", ">f8", "<f2", "<u2", "<i8", "|i1", "|b1", "<c16", "<U3", "|S5", "<M8[ns]"]
).flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0)))
step_report = st.builds(
    StepReport, version=st.integers(0), metrics=st.dictionaries(st.text(), st.floats())
)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=10)
    | st.binary(max_size=200)
    | any_array
    | step_report,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.just("!"), inner, max_size=4)
    ),
    max_leaves=12,
)


def assert_same(got, wanted):
    assert type(got) is type(wanted)
    match wanted:
        case np.ndarray():
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
            assert got.tobytes() == wanted.tobytes()
        case list() | tuple():
            assert len(got) == len(wanted)
            for one, other in zip(got, wanted, strict=True):
                assert_same(one, other)
        case dict():
            assert list(got) == list(wanted)
            for key, value in wanted.items():
                assert_same(got[key], value)
        case StepReport():
            assert got.version == wanted.version
            assert_same(got.metrics, wanted.metrics)
        case float():
            assert got == wanted or (math.isnan(got) and math.isnan(wanted))
        case _:
            assert got == wanted


def through_pipe(value):
    reader, writer = os.pipe()
    thread = threading.Thread(target=write_pieces, args=(writer, encode(value)))
    thread.start()
    try:
        return read_frame(reader)
    finally:
        thread.join()
        os.close(reader)
        os.close(writer)


@settings(deadline=None)
@given(plain)
def test_any_plain_value_comes_back(value):
    assert_same(decode(b"".join(encode(value))), value)


@settings(deadline=None, max_examples=30)
@given(plain)
def test_any_plain_value_crosses_a_pipe(value):
    assert_same(through_pipe(value), value)


def test_arrays_larger_than_a_pipe_cross_it_and_can_be_written():
    batch = {f"a{i}": np.full((100, 101), i, np.float32) for i in range(700)}
    got = through_pipe(batch)
    assert_same(got, batch)
    got["a0"][0, 0] = 5


def test_strided_arrays_arrive_in_order():
    array = np.arange(24.0).reshape(4, 6)
    assert_same(
        through_pipe([array.T, array[::2, ::-1]]), [array.T.copy(), array[::2, ::-1].copy()]
    )


def test_numpy_scalars_keep_their_type():
    got = through_pipe((np.float32(1.5), np.int64(-3), np.bool_(True)))
    assert [type(value) for value in got] == [np.float32, np.int64, np.bool_]
    assert got == (1.5, -3, True)


def test_the_values_of_the_project_cross_whole():
    task = Task(id=1, env="lake", domain="game", seed=9, payload={"size": [4, 4]})
    turn = Turn(
        prompt_tokens=(1, 2),
        tokens=(3,),
        logprobs=(-0.5,),
        versions=(Version(4),),
        observation="o",
        action="left",
        reward=0.0,
    )
    trajectory = token_trajectory(
        id=TrajectoryId(5),
        group=6,
        task=task,
        turns=(turn, turn),
        stop="terminated",
        success=True,
        reward=1.0,
    )
    completion = Completion(
        session=TrajectoryId(5), turn=0, tokens=(), logprobs=(), versions=(), finish="abort"
    )
    values = (trajectory, completion, Sampling(temperature=0.5))
    assert through_pipe(values) == values


class Other:
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Other(), r"test_values\.Other cannot cross a pipe: send JSON values"),
        ({1: 2}, "a dict with the key 1 cannot cross a pipe: use str keys"),
        (np.array([object()]), "an array of dtype object cannot cross a pipe"),
        ({1, 2}, r"builtins\.set cannot cross"),
        (len, "cannot cross"),
    ],
)
def test_what_cannot_cross_is_named(value, message):
    with pytest.raises(CodecError, match=message):
        encode([value])


def test_a_value_that_contains_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(CodecError, match="contains itself"):
        encode(loop)


def frame(header: bytes, payload: bytes = b"", magic: bytes = b"RLA1"):
    return struct.pack("<4sIQ", magic, len(header), len(payload)) + header + payload


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a frame of 0 bytes is too short"),
        (frame(b"1", magic=b"JUNK"), "starts with b'JUNK', wanted b'RLA1'"),
        (frame(b"1") + b"x", "a frame of 18 bytes, announced as 17"),
        (frame(b"{"), "damaged head"),
        (frame(b'{"!":"pickle"}'), "damaged head: KeyError"),
        (frame(b'{"!":["list"]}'), "damaged head: TypeError"),
        (frame(b'{"!":"tuple"}'), "damaged head"),
        (frame(b'{"!":"value","type":"Popen","fields":{}}'), "damaged head: KeyError"),
        (frame(b'{"!":"value","type":"StepReport","fields":{"x":1}}'), "unexpected keyword"),
        (frame(b'{"!":"bytes","offset":0,"bytes":9}', b"123"), "9 bytes at 0 of a body of 3"),
        (frame(b'{"!":"bytes","offset":-1,"bytes":1}', b"123"), "1 bytes at -1"),
        (
            frame(b'{"!":"array","dtype":"O","shape":[0],"offset":0,"bytes":0}'),
            "array of dtype object",
        ),
        (
            frame(b'{"!":"array","dtype":"<f4","shape":[2],"offset":0,"bytes":4}', b"1234"),
            r"4 bytes for float32 of shape \(2,\)",
        ),
        (
            frame(b'{"!":"array","dtype":"<f4","shape":[-1,-1],"offset":0,"bytes":4}', b"1234"),
            r"shape \(-1, -1\)",
        ),
    ],
)
def test_malformed_bytes_give_a_clear_error(data, message):
    with pytest.raises(CodecError, match=message):
        decode(data)


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_random_bytes_never_give_another_error(header, payload):
    with contextlib.suppress(CodecError):
        decode(frame(header, payload))


@pytest.mark.parametrize(
    ("sent", "error", "message"),
    [
        (b"", EOFError, "the pipe was closed"),
        (b"RLA", CodecError, "a frame of 3 bytes is too short"),
        (frame(b"123456")[:-1], CodecError, "closed in the middle of a frame"),
        (struct.pack("<4sIQ", b"RLA1", 1, 2**60) + b"1", CodecError, "more than there is memory"),
    ],
)
def test_a_pipe_that_ends_early_is_told_apart(sent, error, message):
    reader, writer = os.pipe()
    os.write(writer, sent)
    os.close(writer)
    with pytest.raises(error, match=message):
        read_frame(reader)
    os.close(reader)
