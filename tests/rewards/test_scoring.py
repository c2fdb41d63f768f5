"""Only finite rewards come out of a function; anything else is an error that says what it was."""

import asyncio
import math
import sys
from decimal import Decimal
from typing import cast

import numpy as np
import pytest
from rewarded import attempt, call

from rollart.errors import ScoreError
from rollart.rewards.captured_output import LIMIT_BYTES
from rollart.rewards.scoring import check_reward, score
from rollart.types import Reward, ScoreCall

HERE = __name__


def scored(one: ScoreCall) -> tuple[Reward, ...]:
    return asyncio.run(score(one))


def refused(one: ScoreCall) -> ScoreError:
    with pytest.raises(ScoreError) as caught:
        scored(one)
    return caught.value


def length(trajectory, *, unit: float = 1.0):
    return len(trajectory.turns[-1].action) * unit


async def slow_length(trajectory):
    await asyncio.sleep(0)
    return len(trajectory.turns[-1].action)


def lengths(trajectories):
    return [length(each) for each in trajectories]


def given(trajectory, *, value):
    return GIVEN[value]()


def given_group(trajectories, *, value):
    return GIVEN[value]()


def raising(trajectory):
    print("looking at it")  # noqa: T201
    raise KeyError("answer")


def leaving(trajectory):
    sys.exit(3)


def printing(trajectory, *, count: int, catches: bool = False):
    try:
        for _ in range(count):
            print("x" * 1023)  # noqa: T201
    except Exception:
        if not catches:
            raise
    return 1.0


async def chatting(trajectory, *, word: str):
    for _ in range(3):
        print(word)  # noqa: T201
        await asyncio.sleep(0)
    raise ValueError("done")


class Scorer:
    def __call__(self, trajectory):
        return 0.5


scorer = Scorer()
PARTS: dict[str, object] = {
    "nan": {"a": math.nan},
    "none": {"a": None},
    "number": {3: 1.0},
    "nameless": {"": 1.0},
    "list": [1.0],
}
GIVEN = {
    "bool": lambda: True,
    "float": lambda: -0.25,
    "float32": lambda: np.float32(0.5),
    "int64": lambda: np.int64(3),
    "0-d": lambda: np.array(2.0),
    "decimal": lambda: Decimal("0.5"),
    "parts": lambda: Reward(value=True, parts={"style": 1, "length": np.float32(0.5)}),
    "none": lambda: None,
    "text": lambda: "0.5",
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "huge": lambda: 10**400,
    "list": lambda: [1.0],
    "1-d": lambda: np.array([1.0]),
    "complex": lambda: 1j,
    "reward of nan": lambda: Reward(value=math.nan),
    "reward of none": lambda: Reward(value=cast("float", None)),
    "dict": lambda: {0: 1.0, 1: 1.0},
    "one none": lambda: [1.0, None],
    **{f"parts {k}": lambda v=v: Reward(value=1.0, parts=v) for k, v in PARTS.items()},
}


def test_a_function_scores_a_trajectory_with_its_options():
    assert scored(call(f"{HERE}:length", attempt("four"))) == (Reward(value=4.0),)
    assert scored(call(f"{HERE}:length", attempt("four"), unit=0.5)) == (Reward(value=2.0),)


def test_an_async_function_and_a_callable_object_score_too():
    assert scored(call(f"{HERE}:slow_length", attempt("four"))) == (Reward(value=4.0),)
    assert scored(call(f"{HERE}:scorer", attempt("four"))) == (Reward(value=0.5),)


def test_a_group_function_scores_all_attempts_in_order():
    got = scored(call(f"{HERE}:lengths", attempt("a"), attempt("bbb"), is_group=True))
    assert got == (Reward(value=1.0), Reward(value=3.0))


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        ("bool", 1.0),
        ("float", -0.25),
        ("float32", 0.5),
        ("int64", 3.0),
        ("0-d", 2.0),
        ("decimal", 0.5),
    ],
)
def test_whatever_is_one_finite_number_is_a_reward(value: str, reward: float):
    assert scored(call(f"{HERE}:given", attempt("a"), value=value)) == (Reward(value=reward),)


def test_a_reward_keeps_its_parts_as_floats():
    got = scored(call(f"{HERE}:given", attempt("a"), value="parts"))
    assert got == (Reward(value=1.0, parts={"style": 1.0, "length": 0.5}),)
    assert {type(part) for part in got[0].parts.values()} == {float}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("none", "None (NoneType)"),
        ("text", "'0.5' (str)"),
        ("nan", "nan (float)"),
        ("inf", "inf (float)"),
        ("huge", "1" + "0" * 78 + "… (int)"),
        ("list", "[1.0] (list)"),
        ("1-d", "array([1.]) (ndarray)"),
        ("complex", "1j (complex)"),
        ("reward of nan", "nan (float)"),
        ("reward of none", "None (NoneType)"),
    ],
)
def test_what_is_no_finite_number_is_refused_with_what_is_wanted(value: str, shown: str):
    error = refused(call(f"{HERE}:given", attempt("a"), value=value))
    assert str(error) == f"{HERE}:given returned {shown}; wanted a finite number or a Reward"
    assert error.is_final


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("nan", "returned nan (float); wanted a finite number as part 'a'"),
        ("none", "returned None (NoneType); wanted a finite number as part 'a'"),
        ("number", "returned 3 (int); wanted part names as text of 1 to 128 characters"),
        ("nameless", "returned '' (str); wanted part names as text of 1 to 128 characters"),
        ("list", "returned [1.0] (list); wanted parts as a mapping of names to numbers"),
    ],
)
def test_parts_are_finite_numbers_by_name(parts: str, message: str):
    error = refused(call(f"{HERE}:given", attempt("a"), value=f"parts {parts}"))
    assert str(error) == f"{HERE}:given {message}"


def test_too_many_parts_are_refused():
    value = Reward(value=1.0, parts={str(n): 0.0 for n in range(257)})
    with pytest.raises(ScoreError, match=r"\(list 257 parts\); wanted at most 256 parts"):
        check_reward(value, function="f")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("list", "returned [1.0] (list of length 1); wanted a list of 2, one for each trajectory"),
        ("float", "returned -0.25 (float); wanted a list of 2, one for each trajectory"),
        ("dict", "returned {0: 1.0, 1: 1.0} (dict); wanted a list of 2"),
        ("one none", "[1] returned None (NoneType); wanted a finite number or a Reward"),
    ],
)
def test_a_group_function_returns_one_reward_for_each(value: str, message: str):
    one = call(f"{HERE}:given_group", attempt("a"), attempt("b"), is_group=True, value=value)
    assert message in str(refused(one))


def test_a_function_that_raises_is_named_with_what_it_printed():
    error = refused(call(f"{HERE}:raising", attempt("a")))
    assert str(error) == f"{HERE}:raising raised KeyError: 'answer'; it printed: looking at it"
    assert not error.is_final


def test_a_function_that_leaves_the_program_does_not():
    assert str(refused(call(f"{HERE}:leaving", attempt("a")))) == (
        f"{HERE}:leaving raised SystemExit: 3"
    )


@pytest.mark.parametrize("catches", [False, True])
def test_a_function_that_prints_without_end_is_stopped(catches: bool, capsys):
    error = refused(call(f"{HERE}:printing", attempt("a"), count=10**6, catches=catches))
    assert str(error) == f"{HERE}:printing: it printed more than {LIMIT_BYTES} bytes: print less"
    assert error.is_final
    assert capsys.readouterr() == ("", "")


def test_a_little_printing_does_no_harm_and_goes_nowhere(capsys):
    assert scored(call(f"{HERE}:printing", attempt("a"), count=3)) == (Reward(value=1.0),)
    print("after")  # noqa: T201
    assert capsys.readouterr() == ("after\n", "")


def test_what_overlapping_calls_print_does_not_mix():
    async def both() -> list[BaseException | tuple[Reward, ...]]:
        calls = (call(f"{HERE}:chatting", attempt("a"), word=word) for word in ("one", "two"))
        return await asyncio.gather(*map(score, calls), return_exceptions=True)

    before = sys.stdout
    assert [str(error).partition("printed: ")[2] for error in asyncio.run(both())] == [
        "one\none\none",
        "two\ntwo\ntwo",
    ]
    assert sys.stdout is before


def test_a_wrong_name_or_option_is_final():
    error = refused(call(f"{HERE}:lenght", attempt("a")))
    assert f"{HERE} has no function lenght; it has" in str(error)
    assert error.is_final
    error = refused(call(f"{HERE}:length", attempt("a"), units=2))
    assert "reward.options.units = 2: " in str(error)
    assert error.is_final


def test_the_shape_of_a_call_is_checked():
    assert str(refused(call("f"))) == "f: the call has no trajectory"
    error = refused(call(f"{HERE}:length", attempt("a"), attempt("b")))
    assert str(error) == f"{HERE}:length scores one trajectory, 2 were given"
