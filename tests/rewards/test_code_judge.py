"""Solutions are judged from outside their process: what crosses, and what is compared."""

import asyncio
import json
import shutil
from collections.abc import Iterator

import pytest
from rewarded import attempt, call

from rollart.errors import ScoreError
from rollart.rewards.code_judge import PlainCall, ScriptTests, are_equal, read_calls, read_script
from rollart.rewards.code_solution import decode, encode
from rollart.rewards.context import close_sandbox, use_sandbox
from rollart.rewards.registry import pin
from rollart.rewards.scoring import score
from rollart.sandbox import open_sandbox
from rollart.sandbox.options import SandboxOptions
from rollart.types import Json, Program, ProgramLimits, ProgramResult, Reward


@pytest.fixture(autouse=True)
def sandbox() -> Iterator[None]:
    """Programs written in this file need no isolation."""
    use_sandbox(lambda: open_sandbox(SandboxOptions(kind="plain", allow_plain=True)))
    yield
    use_sandbox(None)


def scored(code: str, tests: Json, *, times: int = 1, entry_point: str = "") -> list[float]:
    """Score a program several times in one process; return how many tests passed each time."""

    async def run() -> list[float]:
        try:
            answer = f"```python\n{code}\n```"
            payload: dict[str, Json] = {"tests": tests, "entry_point": entry_point}
            one = call("unit_tests", attempt(answer, payload=payload), mode="fraction")
            return [(await score(one))[0].parts["passed"] for _ in range(times)]
        finally:
            await close_sandbox()

    return asyncio.run(run())


VALUES = [
    *(None, True, False, 0, -7, 10**30, 1.5, float("inf"), "é\n\ud800", b"\x00\xff"),
    *([1, [2]], (1, (2,)), {1: "a", (1, 2): [3]}, {1, 2}, frozenset({3}), 2j, range(1, 9, 2)),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_cross_and_keep_their_types(value: object) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    crossed = decode(json.loads(json.dumps(encode(value, refuse))), refuse)
    assert (crossed, type(crossed)) == (value, type(value))
    assert are_equal(value, encode(value, refuse), "python")


EQUAL = [
    ("python", 1, 1.0, True),
    ("python", True, 1, True),
    ("python", 0.1, 0.1 + 1e-12, False),
    ("python", [1], (1,), False),
    ("python", (1,), (1,), True),
    ("python", {1: 2}, {1: 2}, True),
    ("python", float("nan"), float("nan"), False),
    ("python", None, False, False),
    ("python", "1", 1, False),
    ("python", {1}, [1], False),
    ("json", 1, 1.0, True),
    ("json", True, 1, False),
    ("json", 1, True, False),
    ("json", 0.1, 0.1 + 1e-12, True),
    ("json", 10**17, 10**17 + 1, False),
    ("json", [1, [2]], (1, (2,)), True),
    ("json", {"1": 2}, {1: 2}, True),
    ("json", {"a": [1.0]}, {"a": [1]}, True),
    ("json", float("nan"), float("nan"), True),
    ("json", [1], {1}, False),
    ("json", [], "", False),
]


@pytest.mark.parametrize(("rule", "expected", "given", "is_equal"), EQUAL)
def test_what_is_compared_depends_on_the_rule(rule, expected, given, is_equal: bool) -> None:
    encoded = json.loads(json.dumps(encode(given, lambda value: {"ref": [0]})))
    assert are_equal(expected, encoded, rule) is is_equal


def test_an_object_of_the_solution_equals_nothing() -> None:
    for rule in ("python", "json"):
        for expected in (None, 0, "", [], {}, True, {"ref": [0]}):
            assert not are_equal(expected, {"ref": [0]}, rule)
    assert are_equal((1, 2), {"ref": [0, {"tuple": [1, 2]}]}, "python")


def test_statements_of_literals_are_calls_and_others_a_script() -> None:
    [one] = read_script(("assert add(1, b=[2]) == (3, 'x')",), "") or ()
    assert one == PlainCall(
        function="add", args=(1,), named={"b": [2]}, expected=(3, "x"), rule="python"
    )
    for text in (
        "assert add(1, 2) == 10 ** 2",
        "assert add(x) == 3",
        "assert add(1) != 3",
        "assert sum([1, 2]) == 3",
        "assert add(*[1]) == 3",
        "assert add(**{'a': 1}) == 3",
        "assert add(1) == 2\nassert add(2) == 3",
    ):
        assert isinstance(read_script((text,), ""), ScriptTests), text


def test_calls_are_tests() -> None:
    tests: list[Json] = [
        {"call": "add", "args": [1, 2], "expected": 3},
        {"call": "add", "named": {"a": [1], "b": [2]}, "expected": [1, 2]},
        {"call": "add", "args": [0.1, 0.2], "expected": 0.3},
        {"call": "add", "args": [1, 2], "expected": True},
    ]
    assert scored("def add(a, b): return a + b", tests) == [3.0]
    assert read_calls([{"call": "f"}]) is None
    with pytest.raises(ScoreError, match=r"wanted calls \{") as caught:
        scored("", [{"call": "add", "args": [1, 2]}])
    assert caught.value.is_final


CLASSES = """
import math
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
    def __len__(self): return 1 + (len(self.next) if self.next else 0)
    def __getitem__(self, key): return self.value + key
class LackError(ValueError):
    pass
def shift(items):
    items.append(len(items)); items[0] = {"x": 1}
def count(): yield from range(10**9)
def fail(kind): raise {"lack": LackError, "key": KeyError}[kind]("a", 3)
def twice(function, value): return function(function(value))
def total(values): return sum(values)
def hello(): print("hello")
async def later(x): return x + 1
def helper(): return 1
def uses_helper(): return helper()
def same(x): return x
"""
SCRIPT = """
import contextlib, io, unittest
from unittest import mock
from collections import Counter
import solution
def test_objects():
    node = Node(1, Node(2))
    assert node.next.value == 2 and len(node) == 2 and node[5] == 6
    node.next.value = 7
    assert node.next.value == 7 and isinstance(node, Node) and not isinstance(3, Node)
    assert same(node) == node and same(node) != Node(1)
def test_arguments_that_a_call_changes():
    items = [4, 5]
    shift(items)
    assert items == [{"x": 1}, 5, 2]
def test_generators():
    numbers = count()
    assert [next(numbers), next(numbers)] == [0, 1] and next(iter(numbers)) == 2
class Errors(unittest.TestCase):
    def test_errors(self):
        with self.assertRaises(LackError) as caught: fail("lack")
        self.assertEqual(caught.exception.args, ("a", 3))
        with self.assertRaises(ValueError): solution.fail("lack")
        with self.assertRaises(KeyError): fail("key")
def test_functions_of_the_tests():
    seen = []
    assert twice(lambda x: seen.append(x) or x * 3, 2) == 18 and seen == [2, 6]
    assert twice(len, [[1]]) if False else twice(abs, -3) == 3
    assert total(x for x in (1, 2)) == 3 and total(range(4)) == 6
    assert same(Counter("aa")) == {"a": 2} and same(10**40) == 10**40
def test_what_is_printed():
    with contextlib.redirect_stdout(io.StringIO()) as out: hello()
    assert out.getvalue() == "hello\\n"
async def test_coroutines():
    assert await later(1) == 2
def test_names_that_are_replaced():
    with mock.patch.object(solution, "helper", lambda: 5): assert uses_helper() == 5
    assert uses_helper() == 1
def test_libraries_are_the_real_ones():
    assert math.isclose(0.1 + 0.2, 0.3)
"""


def test_scripts_use_a_solution_as_if_it_were_beside_them() -> None:
    assert scored(CLASSES, SCRIPT, times=2) == [9.0, 9.0]


EQUAL_TO_ALL = """
class Any:
    def __eq__(self, other): return True
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __sub__(self, other): return 0.0
    __rsub__ = __add__ = __sub__
    def __abs__(self): return 0.0
    def __float__(self): return 0.5
    def __contains__(self, other): return True
    def __hash__(self): return hash(3)
def add(a, b): return Any()
def all(values): return True
def abs(value): return 0.0
class math:
    isclose = staticmethod(lambda *_, **__: True)
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert add(1, 2) == 3",
        "assert 3 == add(1, 2)",
        "assert add(1, 2) in (3,)",
        "assert add(1, 2) in {3}",
        "assert [add(1, 2)] == [3]",
        "assert abs(add(1, 2) - 3) < 1e-6",
        "assert 2 < add(1, 2) < 4",
        "assert all(add(i, 0) == i for i in range(3))",
        "assert math.isclose(add(1, 2), 3)",
        "assert float(add(1, 2)) == 3",
        "import unittest; unittest.TestCase().assertAlmostEqual(add(1, 2), 3)",
    ],
)
def test_a_solution_does_not_judge_itself(test: str) -> None:
    assert scored("def add(a, b): return a + b\nimport math", [test]) == [1.0]
    assert scored(EQUAL_TO_ALL, [test]) == [0.0]
    assert scored(EQUAL_TO_ALL, f"def test_it():\n    {test}") == [0.0]
    assert scored(EQUAL_TO_ALL, f"def check(add):\n    {test}", entry_point="add") == [0.0]


def test_values_that_cannot_cross_fail_the_score() -> None:
    test = "class Point: pass\ndef test_it(): same(Point())"
    with pytest.raises(
        ScoreError, match="wanted tests that pass plain values, not Point"
    ) as caught:
        scored(CLASSES, test)
    assert caught.value.is_final


def test_a_solution_that_ends_takes_only_its_own_tests_along() -> None:
    code = "import os\ndef add(a, b): return a + b if a else os._exit(0)"
    tests: list[Json] = ["assert add(1, 1) == (1 + 1)", "assert add(0, 1) == (0 + 1)"]
    assert scored(code, tests, times=2) == [1.0, 1.0]


class Losing:
    """A sandbox that is lost with its program."""

    limits = ProgramLimits()

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, program: Program, **_: object) -> ProgramResult:
        self.runs += 1
        return ProgramResult(
            end="lost", exit_code=137, stdout=b"", stderr=b"", is_cut=False, wall_s=1, start_s=0
        )

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("function", ["unit_tests", "stdin_stdout"])
def test_a_program_that_takes_its_sandbox_down_twice_is_wrong(function: str) -> None:
    losing = Losing()
    use_sandbox(lambda: losing)
    payload: dict[str, Json] = {
        "tests": ["assert f() == 1"],
        "cases": [{"input": "", "output": ""}],
    }

    async def run() -> Reward:
        try:
            return (await score(call(function, attempt("a", payload=payload))))[0]
        finally:
            await close_sandbox()

    assert asyncio.run(run()) == Reward(
        value=0.0, parts={"passed": 0.0, "total": 1.0, "stopped": 1.0}
    )
    assert losing.runs == 2


def test_who_calls_a_served_function_cannot_lift_its_limits() -> None:
    async def run(**limits: Json) -> tuple[Reward, ...]:
        try:
            one = attempt("print(1)", payload={"cases": [{"input": "", "output": "1"}]})
            return await score(call("stdin_stdout", one, limits=limits))
        finally:
            await close_sandbox()

    pin(["stdin_stdout"])
    try:
        with pytest.raises(ScoreError, match=r"limits\.wall_s = 11: must be at most 10, the limit"):
            asyncio.run(run(wall_s=11))
        assert asyncio.run(run(wall_s=9))[0].value == 1.0
    finally:
        from rollart.rewards import registry

        registry._pinned.clear()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_scripts_run_beside_one_program_at_a_time() -> None:
    """A script needs a second sandbox while its solution holds the only place."""
    use_sandbox(lambda: open_sandbox(SandboxOptions(concurrency=1, warm=0)))

    async def run() -> list[float]:
        try:
            payload: dict[str, Json] = {"tests": "def test_one():\n    assert f(2) == 4"}
            one = call("unit_tests", attempt("f = lambda x: 2 * x", payload=payload))
            return [rewards[0].value for rewards in await asyncio.gather(score(one), score(one))]
        finally:
            await close_sandbox()

    assert asyncio.run(run()) == [1.0, 1.0]
