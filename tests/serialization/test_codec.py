"""A codec gives back what it was given, and says in a sentence what is wrong with a text."""

import enum
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.serialization.codec import Codec, CodecError, describe_fault, read_object
from rollart.types import ArraySteps, Json, Task, TokenTurns, Trajectory, Version


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    radius: float
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    side: float = field(metadata={"json": "s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cat:
    lives: int
    kind: Literal["cat"] = "cat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dog:
    kind: Literal["dog"] = "dog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    shapes: tuple[Circle | Square, ...]
    pet: Cat | Dog | None
    pair: tuple[int, str]
    notes: Mapping[str, Json]
    parts: dict[str, list[bool]]


drawing = Codec[Drawing](Drawing, name="drawing")
shape = Codec[Circle | Square](Circle | Square, name="shape")
WHOLE = Drawing(
    shapes=(Circle(radius=0.1 + 0.2, colour=Colour.BLUE), Square(side=-0.0)),
    pet=Cat(lives=9),
    pair=(2**80, "Grüße"),
    notes={"a": [1, None, {"b": 1.5}]},
    parts={"x": [True]},
)


def test_a_value_of_many_types_comes_back_equal_and_with_its_types():
    assert repr(drawing.decode(drawing.encode(WHOLE))) == repr(WHOLE)
    assert json.loads(drawing.encode(WHOLE)) == {
        "shapes": [
            {"type": "Circle", "radius": 0.1 + 0.2, "colour": 2},
            {"type": "Square", "s": -0.0},
        ],
        "pet": {"lives": 9, "kind": "cat"},
        "pair": [2**80, "Grüße"],
        "notes": {"a": [1, None, {"b": 1.5}]},
        "parts": {"x": [True]},
    }


@given(st.floats())
def test_every_float_comes_back_to_the_last_bit(number):
    back = shape.decode(shape.encode(Circle(radius=number))).radius
    assert back.hex() == number.hex()


@given(st.text(), st.integers())
def test_every_text_and_integer_comes_back(text, number):
    pair = Codec[tuple[int, str]](tuple[int, str], name="pair")
    assert pair.decode(pair.encode((number, text))) == (number, text)


def test_read_only_mappings_are_written_as_objects_and_torn_text_with_question_marks():
    task = Task(id=1, env="e", domain="d\udc80", seed=0, payload=MappingProxyType({"a": 1}))
    codec = Codec[Task](Task, name="task")
    assert codec.decode(codec.encode(task)) == Task(
        id=1, env="e", domain="d?", seed=0, payload={"a": 1}
    )


def test_arrays_come_back_with_their_dtype_and_shape():
    steps = ArraySteps(
        observations={"camera": np.arange(24, dtype=">u2").reshape(2, 3, 4)},
        actions=np.array([[0.1], [0.2]], "<f4"),
        logprobs=np.array([-1.0, np.nan], "<f8"),
        rewards=(0.0, 1.0),
        versions=(Version(3), Version(4)),
    )
    trajectory = Trajectory(
        id=1,
        group=2,
        task=Task(id=1, env="e", domain="d", seed=0),
        stop="terminated",
        success=True,
        reward=1.0,
        born=Version(3),
        cost=2,
        payload=steps,
    )
    codec = Codec[Trajectory](Trajectory, name="trajectory")
    back = codec.decode(codec.encode(trajectory))
    assert back == trajectory
    assert back.payload.observations["camera"].dtype.str == ">u2"
    tree = json.loads(codec.encode(trajectory))
    for wrong, message in (
        ({"dtype": "O"}, "an array of dtype object holds no numbers"),
        ({"dtype": "nope"}, "'nope' is no dtype"),
        ({"shape": [7]}, "cannot reshape"),
        ({"data": "!"}, "trajectory.payload.array_steps.actions: Value error"),
    ):
        tree["payload"]["actions"] = {**json.loads(codec.encode(trajectory))["payload"]["actions"]}
        tree["payload"]["actions"] |= wrong
        with pytest.raises(CodecError, match=message):
            codec.decode(json.dumps(tree))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no whole JSON: it breaks off or errs at column 1"),
        ("[" * 100_000, "nested too deeply"),
        ('{"type":"Circle"', "no whole JSON: it breaks off or errs at column 17"),
        ("7", "shape must be an object, got 7"),
        ("{}", r"shape\.type is missing"),
        ('{"type":"Line"}', r"shape\.type = 'Line' is not known"),
        ('{"type":"Circle","colour":1}', r"shape\.Circle\.radius is missing"),
        ('{"type":"Circle","radius":1}', r"shape\.Circle\.colour is missing"),
        ('{"type":"Circle","radius":"1","colour":1}', "radius must be a number, got '1'"),
        ('{"type":"Circle","radius":true,"colour":1}', "radius must be a number, got True"),
        ('{"type":"Circle","radius":1,"colour":3}', "colour must be one of 1 or 2, got 3"),
        ('{"type":"Square","s":1,"side":1}', r"shape\.Square\.side is unknown"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_the_place(text, message):
    with pytest.raises(CodecError, match=message):
        shape.decode(text)


def test_a_long_value_is_cut_in_a_message():
    with pytest.raises(CodecError) as caught:
        drawing.decode(json.dumps({"shapes": "x" * 10_000}))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":1,"a":1}', "a key is written twice among"),
        ('{"a":[NaN]}', "'NaN' is not a finite number"),
        ('{"a":[-Infinity]}', "'-Infinity' is not a finite number"),
        ('{"a":[1e999]}', r"options\.a: .*a number in it is not finite"),
        ('{"a":[%s.0]}' % ("9" * 400), "a number in it is not finite"),
    ],
)
def test_foreign_text_may_hold_only_finite_numbers_and_each_key_once(text, message):
    foreign = Codec[Mapping[str, Json]](Mapping[str, Json], name="options", is_foreign=True)
    own = Codec[Mapping[str, Json]](Mapping[str, Json], name="options")
    with pytest.raises(CodecError, match=message):
        foreign.decode(text)
    own.decode(text)
    assert foreign.decode(foreign.encode({"a": "NaN and Infinity"})) == {"a": "NaN and Infinity"}
    with pytest.raises(CodecError, match="'NaN' is not a finite number"):
        foreign.encode({"a": math.nan})


def test_what_cannot_be_written_is_named():
    with pytest.raises(CodecError, match="int is not a type of shape"):
        shape.encode(3)
    loop: list[object] = []
    loop.append(loop)
    for wrong in (loop, object(), {1, 2} and object):
        task = Task(id=1, env="e", domain="d", seed=0, payload={"a": wrong})
        with pytest.raises(CodecError, match="task cannot be written as JSON"):
            Codec[Task](Task, name="task").encode(task)


def test_a_type_that_has_no_json_is_refused_when_it_is_first_used():
    with pytest.raises(TypeError, match="there is no JSON for the type"):
        Codec[int | str](int | str, name="either").decode(b"1")


def test_a_payload_of_turns_is_told_by_its_kind():
    codec = Codec[TokenTurns](TokenTurns, name="turns")
    assert codec.encode(TokenTurns(turns=())) == b'{"turns":[],"kind":"token_turns"}'


def test_a_file_that_holds_no_object_is_named(tmp_path):
    file = tmp_path / "a.json"
    for text, message in (
        (None, "a.json is missing"),
        ("[]", "a.json holds no JSON object"),
        ('{"a"', "a.json: no whole JSON: it breaks off or errs at column 5"),
        ("[" * 100_000, "a.json: it is nested too deeply"),
        (b"\xff", "a.json: no text: byte 0 is not UTF-8"),
    ):
        if text is not None:
            file.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(CodecError) as caught:
            read_object(file)
        assert str(caught.value) == message
    file.write_text('{"a": 1}')
    assert read_object(file) == {"a": 1}


def test_a_fault_is_told_in_words():
    assert describe_fault(KeyError("seed")) == "'seed' is missing"
    assert describe_fault(TypeError()) == "a value is of another type than is wanted there"
    assert describe_fault(OSError(28, "No space left on device")) == "No space left on device"


def test_the_codec_loads_neither_pydantic_itself_nor_numpy():
    code = (
        "import rollart.rewards.payload, sys\n"
        "print([n for n in ('pydantic', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
