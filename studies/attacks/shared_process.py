"""A test runner that shares a process with the solution, as rollart had before: forgeries fool it.

Never imported by this project; it uses the standard library only, because a sandbox may have
nothing else. Its directory holds `solution.py` and `tests.json`. It reports in lines that start
with a secret read from standard input, on a descriptor the solution does not know. So a solution
passes no test by exiting early, printing or changing the exit code. This is no security boundary:
a solution that searches its own process can find the secret. Where that matters, use
`stdin_stdout`, whose expected outputs never enter the sandbox.
"""

import ast
import asyncio
import inspect
import json
import os
import sys
import unittest
from collections.abc import Callable
from pathlib import Path

_Check = Callable[[], object]
_DEFINITIONS = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom),
    *(ast.Assign, ast.AnnAssign, ast.Pass),
)


class _UnfitError(Exception):
    """A test that needs arguments."""


def main() -> None:
    """Run the tests and report one line for each."""
    secret = sys.stdin.readline().strip()
    # The solution gets /dev/null for its streams; only this copy still reaches the host.
    report = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)

    def say(*words: object) -> None:
        os.write(report, (" ".join(map(str, (secret, *words))) + "\n").encode())

    given = json.loads(Path("tests.json").read_text(encoding="utf-8"))
    tests, entry_point = given["tests"], given["entry_point"]
    if not _can_test(tests, entry_point):
        say("total", 0)
        return
    sys.path.insert(0, str(Path.cwd()))
    try:
        solution = __import__("solution")
    except BaseException as error:
        say("broken", type(error).__name__)
        return
    names = {name: value for name, value in vars(solution).items() if not name.startswith("__")}
    try:
        checks = _collect(tests, names, entry_point)
    except _UnfitError as error:
        say("unfit", error)
        return
    say("total", len(checks))
    for check in checks:
        say("passed" if _holds(check) else "failed")


def _can_test(tests: str | list[str], entry_point: str) -> bool:
    """Return whether the tests can contain any test, whatever the solution is."""
    is_file = isinstance(tests, str)
    try:
        trees = [ast.parse(text) for text in ([tests] if is_file else tests)]
    except (SyntaxError, ValueError):
        return True
    if any(map(_has_statements, trees)):
        return True
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {node.name for node in nodes if isinstance(node, functions)}
    is_called = bool(entry_point) and "check" in names
    return is_file and (is_called or any(name.startswith("test") for name in names))


def _has_statements(tree: ast.Module) -> bool:
    """Return whether a file has top-level statements other than definitions."""
    return not all(
        isinstance(node, _DEFINITIONS)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.If) and "__main__" in ast.dump(node.test))
        for node in tree.body
    )


def _collect(tests: str | list[str], names: dict[str, object], entry_point: str) -> list[_Check]:
    """Return the tests: each statement of a list, a file's test functions, or the whole file."""
    if isinstance(tests, list):
        return [lambda text=text: _execute(text, names) for text in tests]
    try:
        space = _execute(tests, names)
    except BaseException:
        return [_fail]
    found: list[_Check] = []
    for name, value in space.items():
        if inspect.isfunction(value) and name.startswith("test"):
            found.append(_alone(value, name))
        elif inspect.isclass(value) and issubclass(value, unittest.TestCase):
            found += [lambda case=case: _run_case(case) for case in _cases(value)]
        elif inspect.isclass(value) and name.startswith("Test"):
            found += _methods(value)
    check = space.get("check")
    if not found and entry_point and callable(check):
        return [lambda: check(names[entry_point])]
    return found or ([_pass] if _has_statements(ast.parse(tests)) else [])


def _methods(kind: type) -> list[_Check]:
    """Return the test methods of a plain class, each run on a new instance."""

    def run(name: str) -> object:
        suite = kind()
        for each in ("setup_class", "setup_method", name, "teardown_method"):
            if hasattr(suite, each):
                _finish(getattr(suite, each)())
        return None

    methods = [name for name in dir(kind) if name.startswith("test")]
    around = [name for name in ("setup_method", "teardown_method") if hasattr(kind, name)]
    for name in (*methods, *around):
        _alone(getattr(kind, name), f"{kind.__name__}.{name}", given=1)
    return [lambda name=name: run(name) for name in methods]


def _alone(function: Callable[..., object], name: str, *, given: int = 0) -> Callable[..., object]:
    """Return a function if it needs no arguments besides the first `given`; else raise."""
    parameters = list(inspect.signature(function).parameters.values())[given:]
    if any(each.default is each.empty and each.kind in _WANTED for each in parameters):
        raise _UnfitError(name)
    return function


_WANTED = (
    *(inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD),
    inspect.Parameter.KEYWORD_ONLY,
)


def _execute(text: str, names: dict[str, object]) -> dict[str, object]:
    # Runs a task's code, which is safe only because this is a sandbox.
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


def _pass() -> None:
    """Pass: the file itself is the test, and it has run to its end."""


def _finish(returned: object) -> None:
    """Run what a test returned if it is a coroutine."""
    if inspect.iscoroutine(returned):
        asyncio.run(returned)


def _holds(check: _Check) -> bool:
    try:
        _finish(check())
    except BaseException:
        return False
    return True


if __name__ == "__main__":
    main()
