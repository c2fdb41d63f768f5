"""Runs tests against a solution, inside a sandbox: a program there, never imported here.

In its directory lie `solution.py` and `tests.json`. Everything it finds out is written as lines
that begin with a secret read from its input, on an output the solution has no name for: leaving
early, printing or replacing the exit code passes no test. It is no wall: a solution that searches
its own process for the secret would find it. Tests that must withstand that compare outputs
instead (`stdin_stdout`), where what is expected never enters the sandbox.

Standard library only: the sandbox may have nothing else.
"""

import inspect
import json
import os
import sys
import unittest
from collections.abc import Callable
from pathlib import Path


def main() -> None:
    """Run the tests, one line of report for each."""
    secret = sys.stdin.readline().strip()
    report = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)

    def say(*words: object) -> None:
        os.write(report, (" ".join(map(str, (secret, *words))) + "\n").encode())

    tests = json.loads(Path("tests.json").read_text(encoding="utf-8"))
    sys.path.insert(0, str(Path.cwd()))
    try:
        solution = __import__("solution")
    except BaseException as error:
        say("broken", type(error).__name__)
        return
    names = {name: value for name, value in vars(solution).items() if not name.startswith("__")}
    checks = _collect(tests, names)
    say("total", len(checks))
    for check in checks:
        say("passed" if _holds(check) else "failed")


def _collect(tests: str | list[str], names: dict[str, object]) -> list[Callable[[], object]]:
    """Return the tests: each text of a list, or what a file defines, or the file itself."""
    if isinstance(tests, list):
        return [lambda text=text: _execute(text, names) for text in tests]
    try:
        space = _execute(tests, names)
    except BaseException:
        return [_fail]
    found: list[Callable[[], object]] = []
    for name, value in space.items():
        if inspect.isfunction(value) and name.startswith("test"):
            found.append(value)
        elif inspect.isclass(value) and issubclass(value, unittest.TestCase):
            found += [lambda case=case: _run_case(case) for case in _cases(value)]
    return found or [lambda: None]


def _execute(text: str, names: dict[str, object]) -> dict[str, object]:
    # Code of a task, run where nothing can be harmed.
    space = {**names, "__name__": "tests"}
    exec(compile(text, "tests.py", "exec"), space)  # noqa: S102
    return {name: value for name, value in space.items() if names.get(name) is not value}


def _cases(case: type[unittest.TestCase]) -> list[unittest.TestCase]:
    names = unittest.defaultTestLoader.getTestCaseNames(case)
    return [case(name) for name in names]


def _run_case(case: unittest.TestCase) -> None:
    result = unittest.TestResult()
    case.run(result)
    if not result.wasSuccessful() or result.skipped:
        _fail()


def _fail() -> None:
    raise AssertionError


def _holds(check: Callable[[], object]) -> bool:
    try:
        check()
    except BaseException:
        return False
    return True


if __name__ == "__main__":
    main()
