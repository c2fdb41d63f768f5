"""Code is scored by running it in a sandbox, and only there."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rewarded import attempt, call

from rollart.errors import ScoreError
from rollart.rewards.code import are_same
from rollart.rewards.context import close_sandbox, use_sandbox
from rollart.rewards.scoring import score
from rollart.sandbox import open_sandbox
from rollart.sandbox.options import SandboxOptions
from rollart.types import Json, Program, ProgramLimits, ProgramResult, Reward

ADD = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
TWICE = "```python\nprint(2 * int(input()))\n```"


@pytest.fixture(autouse=True)
def sandbox() -> Iterator[None]:
    """Programs written in this file need no isolation."""
    use_sandbox(lambda: open_sandbox(SandboxOptions(kind="plain", allow_plain=True)))
    yield
    use_sandbox(None)


def scored(function: str, answer: str, payload: dict[str, Json], **options: Json) -> Reward:
    async def run() -> Reward:
        try:
            return (await score(call(function, attempt(answer, payload=payload), **options)))[0]
        finally:
            await close_sandbox()

    return asyncio.run(run())


def share(passed: int, total: int, value: float, stopped: float = 0.0) -> Reward:
    parts = {"passed": float(passed), "total": float(total), "stopped": stopped}
    return Reward(value=value, parts=parts)


def test_statements_are_tests_each():
    tests: list[Json] = ["assert add(1, 2) == 3", "assert add(1, 2) == 4", "import solution"]
    assert scored("unit_tests", ADD, {"tests": tests}) == share(2, 3, 0.0)
    assert scored("unit_tests", ADD, {"tests": tests}, mode="fraction") == share(2, 3, 2 / 3)


FILE = """
import unittest
from solution import add

def test_small(): assert add(1, 1) == 2
def test_wrong(): assert add(1, 1) == 3

class Large(unittest.TestCase):
    def test_sum(self): self.assertEqual(add(10**20, 1), 10**20 + 1)
    def test_text(self): self.assertEqual(add("é", "漢"), "é漢")
    @unittest.skip("later")
    def test_later(self): pass
"""


def test_a_file_holds_functions_and_test_cases():
    assert scored("unit_tests", ADD, {"tests": FILE}, mode="fraction") == share(3, 5, 0.6)


def test_a_file_of_statements_alone_is_one_test():
    assert scored("unit_tests", ADD, {"tests": "assert add(1, 2) == 3"}) == share(1, 1, 1.0)
    assert scored("unit_tests", ADD, {"tests": "assert add(1, 2) == 4"}) == share(0, 1, 0.0)


STYLES = """
import asyncio

async def test_awaited():
    await asyncio.sleep(0)
    assert add(1, 1) == 3

class TestSums:
    def setup_method(self): self.one = 1
    def test_right(self): assert add(self.one, 1) == 2
    async def test_wrong(self): assert add(self.one, 1) == 3
    def helper(self, number): return number
"""


def test_coroutines_and_classes_without_a_base_are_tests_too():
    assert scored("unit_tests", ADD, {"tests": STYLES}, mode="fraction") == share(1, 3, 1 / 3)


CHECK = """
METADATA = {"author": "x"}


def check(candidate):
    assert candidate(1, 2) == 3
"""


def test_a_check_is_given_the_tasks_entry_point():
    right: dict[str, Json] = {"tests": CHECK, "entry_point": "add"}
    assert scored("unit_tests", ADD, right) == share(1, 1, 1.0)
    wrong = ADD.replace("a + b", "a - b")
    assert scored("unit_tests", wrong, right) == share(0, 1, 0.0)
    assert scored("unit_tests", ADD, right | {"entry_point": "sub"}) == share(0, 1, 0.0)


@pytest.mark.parametrize("answer", [ADD, "```python\n)\n```"])
@pytest.mark.parametrize(
    ("tests", "wanted"),
    [
        (CHECK, "wanted a test: a function test"),
        ([CHECK, FILE], "wanted a test: a function test"),
        ("def verify(): assert add(1, 2) == 3", "wanted a test: a function test"),
        ("if __name__ == '__main__': print(add)", "wanted a test: a function test"),
        ("class TestSums:\n    def verify(self): assert add(1, 2) == 4", "wanted a test"),
    ],
)
def test_a_file_without_a_test_fails_the_score_whatever_the_answer(answer, tests, wanted):
    with pytest.raises(ScoreError, match=wanted) as caught:
        scored("unit_tests", answer, {"tests": tests})
    assert caught.value.is_final


@pytest.mark.parametrize(
    ("tests", "wanted"),
    [
        ("def test_all(tmp_path): pass", "tests without arguments, which test_all takes"),
        ("class TestIt:\n    def test_all(self, x): pass", "which TestIt.test_all takes"),
        ("class Sums:\n    def test_sum(self): pass", "wanted a test: a function test"),
    ],
)
def test_tests_that_cannot_be_run_fail_the_score(tests, wanted):
    with pytest.raises(ScoreError, match=wanted) as caught:
        scored("unit_tests", ADD, {"tests": tests})
    assert caught.value.is_final


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "no program at all",
        "```python\ndef add(a, b:\n```",
        "```python\nraise SystemExit(0)\n```",
        "```python\nimport os\nos._exit(0)\n```",
        "```python\nprint('total 2', 'passed', 'passed', flush=True)\n```",
        "```python\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n```",
        "```js\nfunction add(a, b) { return a + b }\n```",
    ],
)
def test_a_program_that_fails_passes_nothing(answer: str):
    tests: list[Json] = ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]
    assert scored("unit_tests", answer, {"tests": tests}, mode="fraction") == share(0, 2, 0.0)


def test_what_passed_before_the_time_was_up_counts():
    tests: list[Json] = ["assert add(1, 2) == 3", "while True: pass", "assert add(0, 0) == 0"]
    got = scored("unit_tests", ADD, {"tests": tests}, mode="fraction", limits={"wall_s": 1.0})
    assert got == share(1, 3, 1 / 3, stopped=1.0)


CASES: list[Json] = [
    {"input": "3\n", "output": "6\n"},
    {"input": "-1", "output": "-2"},
    {"input": "x", "output": "xx"},
]


def test_outputs_are_compared_case_by_case():
    assert scored("stdin_stdout", TWICE, {"cases": CASES}) == share(2, 3, 2 / 3)
    assert scored("stdin_stdout", TWICE, {"cases": CASES}, mode="all") == share(2, 3, 0.0)
    assert scored("stdin_stdout", TWICE, {"cases": CASES[:2]}, mode="all") == share(2, 2, 1.0)


def test_cases_may_stand_in_two_lists_and_programs_in_other_languages():
    cases: Json = {"inputs": ["漢字"], "outputs": ["漢字"]}
    got = scored("stdin_stdout", "```sh\ncat\n```", {"c": cases}, key="c", command=["sh", "a.sh"])
    assert got == share(1, 1, 1.0)


def test_a_program_that_ends_badly_fails_its_case_whatever_it_wrote():
    answer = "```python\nprint(6)\nraise ValueError\n```"
    assert scored("stdin_stdout", answer, {"cases": CASES[:1]}) == share(0, 1, 0.0)


@pytest.mark.parametrize(
    ("written", "wanted", "same"),
    [
        (b"6\n", "6", {"lines", "words"}),
        (b"6", "6", {"exact", "lines", "words"}),
        (b"a \nb\n\n", "a\nb", {"lines", "words"}),
        (b"a b", "a\nb", {"words"}),
        (b"0.3333333", "0.33333333", {"words"}),
        (b"1e3", "1000", {"words"}),
        (b"0.33", "0.34", set()),
        (b"a", "b", set()),
        (b"1", "1 2", set()),
        (b"\xff", "a", set()),
        (b"", "", {"exact", "lines", "words"}),
        ("é\n".encode(), "é\n", {"exact", "lines", "words"}),
    ],
)
def test_how_strictly_outputs_are_compared_is_an_option(written: bytes, wanted: str, same):
    got = {how for how in ("exact", "lines", "words") if are_same(written, wanted, compare=how)}
    assert got == same


@pytest.mark.parametrize(
    ("function", "payload", "options", "message"),
    [
        ("unit_tests", {"x": 1}, {}, "task.payload has no key 'tests'; its keys: x"),
        ("unit_tests", {"tests": []}, {}, "task.payload['tests'] is []; wanted a test file"),
        ("unit_tests", {"tests": "a"}, {"mode": "some"}, "mode = 'some': use all or fraction"),
        ("unit_tests", {"tests": "a"}, {"limits": {"wall": 1}}, "limits.wall = 1: must be a num"),
        ("stdin_stdout", {}, {}, "task.payload has no key 'cases'; its keys: none"),
        ("stdin_stdout", {"cases": [{"input": 3}]}, {}, 'wanted a list of {"input": text'),
        ("stdin_stdout", {"cases": CASES}, {"command": ["cat"]}, "must end with the program's f"),
        ("stdin_stdout", {"cases": CASES[:1]}, {"compare": "some"}, "compare = 'some': use exact"),
    ],
)
def test_wrong_tasks_and_options_are_errors(function: str, payload, options, message: str):
    with pytest.raises(ScoreError) as caught:
        scored(function, TWICE, payload, **options)
    assert message in str(caught.value)
    assert caught.value.is_final


ONE: list[Json] = ["assert add(1, 2) == 3"]


class Broken:
    """A sandbox that fails."""

    limits = ProgramLimits()

    async def run(self, program: Program, **_: object) -> ProgramResult:
        raise OSError("no space left")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("function", "payload"), [("unit_tests", {"tests": ONE}), ("stdin_stdout", {"cases": CASES})]
)
def test_a_sandbox_that_fails_is_an_error_and_no_score(function: str, payload):
    use_sandbox(Broken)
    with pytest.raises(ScoreError, match="the sandbox failed: OSError: no space left") as caught:
        scored(function, TWICE, payload)
    assert not caught.value.is_final


def test_without_a_sandbox_nothing_runs():
    use_sandbox(None)
    with pytest.raises(
        ScoreError, match="scoring code needs a sandbox, but this process has none"
    ) as caught:
        scored("unit_tests", ADD, {"tests": "a"})
    assert caught.value.is_final


def test_a_sandbox_that_cannot_be_opened_is_told():
    def opening():
        raise OSError("no bubblewrap")

    use_sandbox(opening)
    with pytest.raises(ScoreError, match="could not be opened: OSError: no bubblewrap"):
        scored("unit_tests", ADD, {"tests": "a"})


class Noting:
    """A sandbox whose programs end as it is told, and which notes their limits."""

    limits = ProgramLimits(wall_s=3.0, memory_bytes=2**20)

    def __init__(self, *, cpu_s: float | None = None, waited_s: float | None = None) -> None:
        self.seen: list[ProgramLimits] = []
        self._cpu_s = cpu_s
        self._waited_s = waited_s

    async def run(self, program: Program, **_: object) -> ProgramResult:
        self.seen.append(program.limits)
        return ProgramResult(
            end="wall",
            exit_code=137,
            stdout=b"",
            stderr=b"",
            is_cut=False,
            wall_s=3.0,
            start_s=0.0,
            cpu_s=self._cpu_s,
            waited_s=self._waited_s,
        )

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("function", "payload"), [("unit_tests", {"tests": ONE}), ("stdin_stdout", {"cases": CASES})]
)
def test_a_sandboxes_own_limits_hold_but_for_what_the_options_say(function: str, payload):
    noting = Noting()
    use_sandbox(lambda: noting)
    scored(function, TWICE, payload, limits={"wall_s": 7.0})
    seen = {replace(limits, output_bytes=0) for limits in noting.seen}
    assert seen == {ProgramLimits(wall_s=7.0, memory_bytes=2**20, output_bytes=0)}


@pytest.mark.parametrize(
    ("function", "payload"), [("unit_tests", {"tests": ONE}), ("stdin_stdout", {"cases": CASES})]
)
def test_a_program_that_was_kept_from_a_processor_is_no_0(function: str, payload):
    use_sandbox(lambda: Noting(cpu_s=0.3, waited_s=2.6))
    message = r"the program had a processor for 0\.3 of 3\.0 s; raise sandbox.cpu_shares"
    with pytest.raises(ScoreError, match=message) as caught:
        scored(function, TWICE, payload)
    assert not caught.value.is_final


@pytest.mark.parametrize(
    ("cpu_s", "waited_s"),
    [(0.1, 0.0), (2.9, 2.0), (2.9, 0.1), (None, None), (0.1, None)],
    ids=["slept", "crowded itself", "ran", "unknown", "no waits known"],
)
def test_any_other_program_that_met_its_wall_limit_passed_nothing(cpu_s, waited_s):
    use_sandbox(lambda: Noting(cpu_s=cpu_s, waited_s=waited_s))
    assert scored("unit_tests", TWICE, {"tests": ONE}) == share(0, 1, 0.0, stopped=1.0)
