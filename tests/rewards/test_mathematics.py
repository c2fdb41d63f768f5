"""Mathematics: equal expressions are right, unreadable answers wrong, unreadable tasks errors."""

import threading
from typing import Any

import pytest
from math_verify.errors import TimeoutException
from rewarded import attempt

from rollart.errors import ConfigError, ScoreError
from rollart.rewards import mathematics
from rollart.rewards.mathematics import math
from rollart.types import Reward


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        ("The answer is $4$.", "4", 1.0),
        ("4", 4, 1.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{\frac{2}{4}}", "1/2", 1.0),
        (r"$1+x^2$", "x^2+1", 1.0),
        (r"$\{2,1\}$", r"\{1,2\}", 1.0),
        (r"\boxed{2\sqrt{2}}", r"$\sqrt{8}$", 1.0),
        (r"\boxed{5}", ["3", "5"], 1.0),
        (r"\boxed{3} or \boxed{4}", "4", 0.0),
        (r"$x = 3$? No, the answer is $x = 4$", "4", 1.0),
        (r"\boxed{5}", "4", 0.0),
        ("", "4", 0.0),
        ("no idea", "4", 0.0),
        ("漢字", "4", 0.0),
        (r"\boxed{\frac{}", "4", 0.0),
        ("x" * 10**6 + r" \boxed{4}", "4", 1.0),
    ],
)
def test_an_answer_is_right_if_it_equals_the_expected_expression(answer, expected, reward):
    scored = math(attempt(answer, payload={"answer": expected}))
    assert scored == Reward(value=reward, parts={"stopped": 0.0})


def test_what_counts_of_the_answer_is_an_option():
    said = attempt("<answer>4</answer> though 5 is near", payload={"answer": "4"})
    assert math(said, pattern="<answer>(.*?)</answer>").value == 1.0
    assert math(said, pattern="<box>(.*?)</box>").value == 0.0


@pytest.mark.parametrize("expected", ["", "   ", r"\frac{", "漢字"])
def test_an_expectation_that_cannot_be_read_is_an_error(expected: str):
    message = r"task.payload\['answer'\] is .*; wanted an expression math-verify can read"
    with pytest.raises(ScoreError, match=message) as caught:
        math(attempt("4", payload={"answer": expected}))
    assert caught.value.is_final


def test_a_missing_key_is_an_error():
    with pytest.raises(ScoreError, match=r"task.payload has no key 'gold'; its keys: answer"):
        math(attempt("4", payload={"answer": "4"}), key="gold")


def test_an_answer_that_takes_too_long_is_wrong_after_a_second_try(monkeypatch):
    tower = r"\boxed{" + "2^{" * 30 + "1" + "}" * 30 + "}"
    slow = attempt("(" * 60 + tower, payload={"answer": "4"})
    assert math(slow, timeout_s=1) == Reward(value=0.0, parts={"stopped": 1.0})
    real, calls = mathematics.parse, []

    def slow_once(text: str, **options: Any) -> list[Any]:
        calls.append(text)
        if len(calls) == 2:
            raise TimeoutException
        return real(text, **options)

    monkeypatch.setattr(mathematics, "parse", slow_once)
    four = attempt("$4$", payload={"answer": "4"})
    assert math(four) == Reward(value=1.0, parts={"stopped": 0.0})


def test_an_expectation_that_takes_too_long_is_an_error(monkeypatch):
    def slow(*_: object, **__: object) -> None:
        raise TimeoutException

    monkeypatch.setattr(mathematics, "parse", slow)
    with pytest.raises(ScoreError, match="the expected answer took more than 5 s") as caught:
        math(attempt("4", payload={"answer": "4"}))
    assert caught.value.is_final
    with pytest.raises(ConfigError, match=r"reward.options.timeout_s = 0: must be a whole number"):
        math(attempt("4", payload={"answer": "4"}), timeout_s=0)


def test_it_works_in_a_thread_too():
    got: list[float] = []
    one = attempt("$4$", payload={"answer": "4"})
    thread = threading.Thread(target=lambda: got.append(math(one).value))
    thread.start()
    thread.join()
    assert got == [1.0]


@pytest.mark.parametrize("step", ["parse", "verify"])
def test_what_is_wrong_with_the_process_is_no_wrong_answer(step, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(mathematics, step, fail)
    with pytest.raises(MemoryError):
        math(attempt("4", payload={"answer": "4"}))
