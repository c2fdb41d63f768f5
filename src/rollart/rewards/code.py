"""Code rewards: how many tests a program passes, run in the sandbox of this process.

Code written by the model runs nowhere else, and is judged from outside: nothing that it prints or
returns can stand for a verdict (`code_judge.py`). A program that fails, crashes, reaches a limit or
brings down its sandbox twice passes no test; the part `stopped` is 1 if a limit or the end of the
sandbox stopped it. A sandbox that does not start, or gives a program no processor time, is an
error, never a 0. The value is the share of tests passed (`mode = "fraction"`), or 1 if all passed,
else 0 (`mode = "all"`).

Outputs are compared as `exact` (every byte), `lines` (ignores spaces at line ends and empty lines
at the end) or `words` (ignores all white space; numbers are equal within a relative 1e-6).
"""

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypeAlias, TypeVar, cast

from rollart.errors import ConfigError, ScoreError
from rollart.ports import Conversation, Talk
from rollart.rewards.answers import Source, find_answer, find_code, get_expected, wrong_payload
from rollart.rewards.code_judge import (
    PlainCall,
    Runners,
    ScriptRunner,
    ScriptTests,
    Verdicts,
    count_calls,
    judge,
    read_calls,
    read_script,
    solution_program,
)
from rollart.rewards.context import get_sandbox
from rollart.rewards.registry import is_pinned
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


T = TypeVar("T")
Mode: TypeAlias = Literal["all", "fraction"]
Case: TypeAlias = tuple[str, str]
"""A program's input and its expected output."""

_STOPPED = ("wall", "cpu", "memory", "files", "lost")
"""How a program ends that a limit or the end of its sandbox stopped."""
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
    """Score a Python program by its task's tests: calls, a list of statements, or a test file.

    A call is an object `{"call": name, "args": list, "named": object, "expected": value}`. A file's
    tests are its functions `test…`, its TestCases and the methods of its classes `Test…`. If it
    has none, its `check(candidate)` is used when the task names an `entry_point`, else its
    statements. Tests can use the solution's names directly or import `solution`. A file without
    any test is an error.
    """
    _check_mode(mode)
    tests = get_expected(trajectory, key)
    entry_point = trajectory.task.payload.get(ENTRY_POINT, "")
    plan = _read_tests(tests, str(entry_point or ""), key)
    code = find_code(find_answer(trajectory, source=source) or "", language="python")
    program = solution_program(_encode(code), python=python, limits=_read_limits(limits))
    if isinstance(plan, tuple):
        stdin = b"".join(call.request() for call in plan)
        result = await _run(replace(program, stdin=stdin))
        return _reward(count_calls(plan, result.stdout), len(plan), mode, (result,))
    found = Verdicts()
    runners = Runners(get_sandbox(), python)
    ready: list[ScriptRunner] = []

    async def talk(solution: Conversation) -> None:
        found.said.clear()
        runner = ready.pop() if ready else await runners.acquire()
        cpu_s = program.limits.cpu_s
        await judge(solution, plan, found, runners=runners, runner=runner, cpu_s=cpu_s)

    try:
        ready.append(await _guard(runners.acquire()))
        result = await _run(program, talk)
    finally:
        for runner in ready:
            runners.give_back(runner)
    if unfit := found.unfit():
        raise wrong_payload(key, tests, unfit)
    passed, total = found.count()
    if total == 0 and ["total", "0"] in found.said:
        raise wrong_payload(key, tests, _TESTS)
    fewest = len(tests) if isinstance(tests, list) else 1
    return _reward(passed, max(total, fewest), mode, (result,))


def _read_tests(tests: Json, entry_point: str, key: str) -> tuple[PlainCall, ...] | ScriptTests:
    """Return a task's tests; raise if there is none in them."""
    if isinstance(tests, list) and any(isinstance(each, dict) for each in tests):
        calls = read_calls(tests)
        if calls is None:
            wanted = 'calls {"call": name, "args": list, "named": object, "expected": value}'
            raise wrong_payload(key, tests, wanted)
        return calls
    if not _are_tests(tests):
        raise wrong_payload(key, tests, "a test file as text, or a list of statements or calls")
    text = tests if isinstance(tests, str) else tuple(cast("list[str]", tests))
    plan = read_script(text, entry_point)
    if plan is None:
        raise wrong_payload(key, tests, _TESTS)
    return plan


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

    results: list[ProgramResult] = []

    async def passes(case: Case) -> bool:
        read, wanted = case
        # Room for twice the expected output: a longer one is wrong in any case.
        room = replace(allowed, output_bytes=max(allowed.output_bytes, 2 * len(_encode(wanted))))
        result = await _run(
            Program(argv=tuple(command), files=files, stdin=_encode(read), limits=room)
        )
        results.append(result)
        is_done = result.end == "exited" and result.exit_code == 0 and not result.is_cut
        return is_done and are_same(result.stdout, wanted, compare=compare)

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(passes(case)) for case in cases]
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    return _reward(sum(task.result() for task in running), len(cases), mode, results)


_LANGUAGES = {"py": "python", "js": "javascript", "sh": "bash", "rb": "ruby"}


async def _run(program: Program, talk: Talk | None = None) -> ProgramResult:
    """Run a program; once more if its sandbox was lost, which a program may bring about itself."""
    result = await _run_once(program, talk)
    return await _run_once(program, talk) if result.end == "lost" else result


async def _guard(running: Coroutine[Any, Any, T]) -> T:
    """Return what a sandbox returned; raise a ScoreError if it failed."""
    try:
        return await running
    except (ScoreError, ConfigError):
        raise
    except Exception as error:
        raise ScoreError(f"the sandbox failed: {type(error).__name__}: {error}") from error


async def _run_once(program: Program, talk: Talk | None) -> ProgramResult:
    sandbox = get_sandbox()
    running = sandbox.run(program) if talk is None else sandbox.run(program, talk=talk)
    result = await _guard(running)
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


def _check_mode(mode: Mode) -> None:
    if mode not in ("all", "fraction"):
        raise ConfigError("reward.options.mode", mode, "use all or fraction")


def _reward(passed: int, total: int, mode: Mode, results: Sequence[ProgramResult]) -> Reward:
    value = passed / total if mode == "fraction" else float(passed == total)
    stopped = any(result.end in _STOPPED or result.is_cut for result in results)
    parts = {"passed": float(passed), "total": float(total), "stopped": float(stopped)}
    return Reward(value=value, parts=parts)


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
    """Return the sandbox's limits, replaced where the options set others.

    Where this process serves others, their options can only lower the limits.
    """
    allowed = get_sandbox().limits
    known = {field.name for field in fields(ProgramLimits)}
    for name, value in (limits or {}).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if name not in known or not is_number:
            fix = f"must be a number above 0 under one of {', '.join(sorted(known))}"
            raise ConfigError(f"reward.options.limits.{name}", value, fix)
        if is_pinned() and value > getattr(allowed, name):
            fix = (
                f"must be at most {getattr(allowed, name):g}, the limit of the process that serves"
            )
            raise ConfigError(f"reward.options.limits.{name}", value, fix)
    return replace(allowed, **cast("dict[str, int]", dict(limits or {})))


def _encode(text: str) -> bytes:
    """Encode a text as UTF-8; characters that cannot be encoded become question marks."""
    return text.encode(errors="replace")
