"""Code rewards: how many tests a program passes, run in the sandbox of this process.

Code written by the model runs nowhere else. A program that fails, crashes or reaches a limit passes
no test. A sandbox that fails, or gives a program no processor time, is an error, never a 0. The
value is the share of tests passed (`mode = "fraction"`), or 1 if all passed, else 0
(`mode = "all"`).

Outputs are compared as `exact` (every byte), `lines` (ignores spaces at line ends and empty lines
at the end) or `words` (ignores all white space; numbers are equal within a relative 1e-6).
"""

import asyncio
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal, TypeAlias, cast

from rollart.errors import ConfigError, ScoreError
from rollart.rewards.answers import Source, find_answer, find_code, get_expected, wrong_payload
from rollart.rewards.context import get_sandbox
from rollart.types import Json, Program, ProgramLimits, ProgramResult, Reward, Trajectory

Compare: TypeAlias = Literal["exact", "lines", "words"]


def are_same(written: bytes, wanted: str, *, compare: Compare) -> bool:
    """Return whether an output equals the expected one."""
    if compare == "exact":
        return written == wanted.encode(errors="replace")
    text = written.decode(errors="replace")
    if compare == "lines":
        return _lines(text) == _lines(wanted)
    if compare == "words":
        left, right = text.split(), wanted.split()
        return len(left) == len(right) and all(map(_are_same_words, left, right))
    raise ConfigError("reward.options.compare", compare, "use exact, lines or words")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _are_same_words(left: str, right: str) -> bool:
    if left == right:
        return True
    try:
        return math.isclose(float(left), float(right), rel_tol=1e-6, abs_tol=1e-9)
    except ValueError:
        return False


Mode: TypeAlias = Literal["all", "fraction"]
Case: TypeAlias = tuple[str, str]
"""A program's input and its expected output."""

_RUNNER = Path(__file__).with_name("code_runner.py")
_SECRET_BYTES = 16
ENTRY_POINT = "entry_point"
"""Payload key that names the function passed to a test file's `check(candidate)`."""
_TESTS = (
    f"a test: a function test…, a class Test…, a TestCase, a statement, or check with {ENTRY_POINT}"
)


async def unit_tests(
    trajectory: Trajectory,
    *,
    key: str = "tests",
    source: Source = "last",
    mode: Mode = "all",
    python: str = "python3",
    limits: Mapping[str, Json] | None = None,
) -> Reward:
    """Score a Python program by its task's tests: a test file or a list of statements.

    A file's tests are its functions `test…`, its TestCases and the methods of its classes `Test…`.
    If it has none, its `check(candidate)` is used when the task names an `entry_point`, else its
    statements. Tests can use the solution's names directly or import `solution`. A file without
    any test is an error.
    """
    _check_mode(mode)
    tests = get_expected(trajectory, key)
    if not _are_tests(tests):
        raise wrong_payload(key, tests, "a test file as text, or a list of test statements")
    entry_point = trajectory.task.payload.get(ENTRY_POINT, "")
    program = find_code(find_answer(trajectory, source=source) or "", language="python")
    secret = secrets.token_hex(_SECRET_BYTES)
    result = await _run(
        Program(
            argv=(python, "run_tests.py"),
            files={
                "run_tests.py": _RUNNER.read_bytes(),
                "solution.py": _encode(program),
                "tests.json": json.dumps({"tests": tests, "entry_point": entry_point}).encode(),
            },
            stdin=f"{secret}\n".encode(),
            limits=_read_limits(limits),
        )
    )
    said = _said(result, secret)
    if unfit := [words[1] for words in said if words[0] == "unfit"]:
        raise wrong_payload(key, tests, f"tests without arguments, which {unfit[0]} takes")
    if ["total", "0"] in said:
        raise wrong_payload(key, tests, _TESTS)
    passed, total = _count(said)
    return _reward(passed, max(total, len(tests) if isinstance(tests, list) else 1), mode)


async def stdin_stdout(
    trajectory: Trajectory,
    *,
    key: str = "cases",
    source: Source = "last",
    mode: Mode = "fraction",
    compare: Compare = "lines",
    command: Sequence[str] = ("python3", "solution.py"),
    limits: Mapping[str, Json] | None = None,
) -> Reward:
    """Score a program by its output for each case's input.

    The last word of `command` is the file the program is saved as; its suffix gives the language.
    Expected outputs stay in this process, so the program cannot read them.
    """
    _check_mode(mode)
    cases = _read_cases(get_expected(trajectory, key), key)
    allowed = _read_limits(limits)
    if not command or "." not in command[-1]:
        fix = "must end with the program's file, such as solution.py"
        raise ConfigError("reward.options.command", command, fix)
    language = _LANGUAGES.get(command[-1].rpartition(".")[2], "")
    program = find_code(find_answer(trajectory, source=source) or "", language=language)
    files = {command[-1]: _encode(program)}

    async def passes(case: Case) -> bool:
        read, wanted = case
        # Room for twice the expected output: a longer one is wrong in any case.
        room = replace(allowed, output_bytes=max(allowed.output_bytes, 2 * len(_encode(wanted))))
        result = await _run(
            Program(argv=tuple(command), files=files, stdin=_encode(read), limits=room)
        )
        is_done = result.end == "exited" and result.exit_code == 0 and not result.is_cut
        return is_done and are_same(result.stdout, wanted, compare=compare)

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(passes(case)) for case in cases]
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    return _reward(sum(task.result() for task in running), len(cases), mode)


_LANGUAGES = {"py": "python", "js": "javascript", "sh": "bash", "rb": "ruby"}


async def _run(program: Program) -> ProgramResult:
    try:
        result = await get_sandbox().run(program)
    except ScoreError:
        raise
    except Exception as error:
        raise ScoreError(f"the sandbox failed: {type(error).__name__}: {error}") from error
    if _was_starved(result, program.limits):
        had = f"{result.cpu_s:.1f} of {result.wall_s:.1f} s"
        fix = "raise sandbox.cpu_shares or lower sandbox.concurrency"
        raise ScoreError(f"the host was too busy: the program had a processor for {had}; {fix}")
    return result


def _was_starved(result: ProgramResult, limits: ProgramLimits) -> bool:
    """Return whether a program reached its wall limit because it got too little processor time.

    True if all its processes together had less than half a processor and one waited for it more
    than half of the time. A program that sleeps does not wait; one whose own processes compete
    uses more. False if the sandbox did not measure it.
    """
    if result.end != "wall" or result.cpu_s is None or result.waited_s is None:
        return False
    return result.cpu_s < limits.wall_s / 2 < result.waited_s


def _said(result: ProgramResult, secret: str) -> list[list[str]]:
    """Return the words of each line that starts with the secret.

    Only the test runner knows it, so a solution cannot claim passed tests by printing.
    """
    lines = result.stdout.decode(errors="replace").splitlines()
    return [line.split()[1:] for line in lines if line.startswith(f"{secret} ")]


def _count(said: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Return how many tests passed and how many there were."""
    totals = [int(words[1]) for words in said if words[0] == "total"]
    total = totals[0] if totals else 0
    return min(sum(words[0] == "passed" for words in said), total), total


def _check_mode(mode: Mode) -> None:
    if mode not in ("all", "fraction"):
        raise ConfigError("reward.options.mode", mode, "use all or fraction")


def _reward(passed: int, total: int, mode: Mode) -> Reward:
    value = passed / total if mode == "fraction" else float(passed == total)
    return Reward(value=value, parts={"passed": float(passed), "total": float(total)})


def _are_tests(value: Json) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, str) for each in value)
    return isinstance(value, str) and bool(value.strip())


def _read_cases(value: Json, key: str) -> list[Case]:
    """Read cases: a list of {"input", "output"}, or one object with lists `inputs`, `outputs`."""
    cases: list[object] = []
    if isinstance(value, list):
        cases = [
            (each.get("input"), each.get("output")) if isinstance(each, dict) else None
            for each in value
        ]
    elif isinstance(value, dict):
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
            cases = list(zip(inputs, outputs, strict=True))
    if not cases or not all(_is_case(case) for case in cases):
        raise wrong_payload(key, value, 'a list of {"input": text, "output": text}')
    return cast("list[Case]", cases)


def _is_case(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(text, str) for text in cast("tuple[object, ...]", value)
    )


def _read_limits(limits: Mapping[str, Json] | None) -> ProgramLimits:
    """Return the sandbox's limits, replaced where the options set others."""
    known = {field.name for field in fields(ProgramLimits)}
    for name, value in (limits or {}).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if name not in known or not is_number:
            fix = f"must be a number above 0 under one of {', '.join(sorted(known))}"
            raise ConfigError(f"reward.options.limits.{name}", value, fix)
    return replace(get_sandbox().limits, **cast("dict[str, int]", dict(limits or {})))


def _encode(text: str) -> bytes:
    """Encode a text as UTF-8; characters that cannot be encoded become question marks."""
    return text.encode(errors="replace")
