"""The test runner: a program that runs a task's tests, in a sandbox that holds no solution.

Never imported by this project; it uses the standard library only, because a sandbox may have
nothing else. The solution runs in another sandbox (`code_solution.py`). Here its functions and
classes are `Remote` objects: a call sends plain values and gets plain values back, so nothing that
a solution does to its own process reaches the tests. What a solution returns is compared here, by
the tests: an object of one of its classes equals only itself and has no operators, since
both would let the solution judge itself.

Each line of the input is a job, followed by a line with the solution's names. A job runs in a
process of its own, forked from this one. Its lines start with `>` (a request to the solution; the
next line of the input is the reply) or with `=` (what the host should know: `total`, `passed`,
`failed`, `unfit`, `end`).
"""

import ast
import asyncio
import builtins
import importlib
import importlib.util
import inspect
import io
import os
import resource
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any, cast

from code_solution import (  # pyright: ignore[reportMissingImports]
    MOST_ITEMS,
    Lines,
    Peer,
    UnfitError,
    take_streams,
)

_Check = Callable[[], object]
_ALIASES = {"np": "numpy", "pd": "pandas", "sp": "scipy", "nx": "networkx", "plt": "matplotlib"}


class SolutionError(Exception):
    """What a solution raised, if it is no exception that the tests know."""


class _NeedsArgumentsError(Exception):
    """A test that needs arguments."""


def main() -> None:
    """Run jobs until the input ends, each in a process of its own."""
    lines = Lines(*take_streams(), mark=">")
    os.write(lines.write_fd, b"=ready\n")
    while (job := lines.read()) is not None:
        if "over" in job:
            continue
        child = os.fork()
        if child == 0:
            try:
                _run(job, lines)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        lines.clear()
        os.write(lines.write_fd, b"=end\n")


def _run(job: "dict[str, Any]", lines: Any) -> None:
    """Run the tests of a job and report one line for each."""
    resource.setrlimit(resource.RLIMIT_CPU, (job["cpu_s"], job["cpu_s"] + 1))

    def say(*words: object) -> None:
        os.write(lines.write_fd, ("=" + " ".join(map(str, words)) + "\n").encode())

    tests = Tests(lines)
    try:
        names = tests.read_names(lines.read() or {}, job)
    except Exception:
        return
    try:
        checks = _collect(job, names)
    except _NeedsArgumentsError as error:
        say("unfit", "arguments", error)
        return
    say("total", len(checks))
    for check in [] if tests.unfit else checks:
        say("passed" if _holds(check) else "failed")
        if tests.unfit:
            break
    if tests.unfit:
        say("unfit", "values", tests.unfit)


class Tests(Peer):  # pyright: ignore[reportUntypedBaseClass]
    """The tests' side of the conversation with a solution."""

    __test__ = False

    def __init__(self, lines: Any) -> None:
        super().__init__(lines)
        self.unfit = ""
        """The type of an argument that cannot be sent."""
        self._errors: dict[str, type[Exception]] = {}

    def read_names(self, hello: "dict[str, Any]", job: "dict[str, Any]") -> "dict[str, object]":
        """Return the solution's names, and make them the module `solution`.

        `all`, or `math` in `math.isclose(…)`, keep their usual meaning for tests that do not import
        them from the solution: else a solution could define them.
        """
        libraries = _find_libraries(job["tests"])
        names = {name: self.decode(tree) for name, tree in hello["names"] if name.isidentifier()}
        module = SolutionModule(self, names)
        sys.modules["solution"] = module
        own: dict[str, object] = {}
        for name, value in names.items():
            if name in libraries:
                library = _import(_ALIASES.get(name) or str(name))
                own |= {} if library is None else {name: library}
            elif name == job["entry_point"] or not hasattr(builtins, name):
                own[name] = value
        return own

    def operate(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Let the solution's process do an operation; return or raise what came of it."""
        try:
            request: dict[str, Any] = {
                "op": operation,
                "args": [self.encode(each) for each in arguments],
                "named": {name: self.encode(each) for name, each in named.items()},
            }
        except UnfitError as error:
            self.unfit = str(error)
            raise
        reply = self.ask(request)
        if printed := reply.get("printed"):
            sys.stdout.write(str(printed))
        if "ok" in reply:
            for number, tree in reply.get("changed", ()):
                _overwrite(arguments[number], self.decode(tree))
            return self.decode(reply["ok"])
        raise self._error(reply)

    def answer(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Call a function of the tests for the solution."""
        try:
            arguments = [self.decode(each) for each in request["args"]]
            named = {name: self.decode(each) for name, each in request["named"].items()}
            return {"ok": self.encode(self.kept[request["number"]](*arguments, **named))}
        except Exception as error:
            return self.raised(error)
        except UnfitError as error:
            return self.raised(TypeError(str(error)))

    def hide(self, value: Any) -> Any:  # noqa: PLR0911 one for each kind
        """Return what stands for a value that is not plain."""
        if isinstance(value, Remote):
            return {"ref": [_number(value)]}
        if isinstance(value, SolutionModule):
            return {"solution": 1}
        name = getattr(value, "__name__", "")
        if isinstance(value, type) and issubclass(value, Exception) and name in self._errors:
            return {"name": name}
        if getattr(builtins, str(name), None) is value:
            return {"builtin": name}
        home = getattr(value, "__module__", None)
        if home in sys.stdlib_module_names and getattr(sys.modules.get(home), name, None) is value:
            return {"import": [home, name]}
        if callable(value) and not isinstance(value, type):
            return {"function": self.keep(value)}
        if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            return {"iterator": [self.encode(each) for each in _first(value)]}
        for plain in (list, tuple, dict, set, int, float, str, bytes):
            if isinstance(value, plain):
                return self.encode(cast("Callable[[Any], Any]", plain)(value))
        raise UnfitError(type(value).__name__)

    def show(self, tag: str, content: Any) -> Any:
        """Return the object that something of the solution's process stands for."""
        if tag == "ref":
            plain = self.decode(content[1]) if len(content) > 1 else None
            return Remote(self, int(content[0]), plain)
        if tag == "builtin":
            found = getattr(builtins, content)
            if isinstance(found, type):
                return found
        if tag == "exception":
            return self._error_class(content)
        if tag == "module":
            return _import(content) if content in sys.stdlib_module_names else None
        raise ValueError(tag)

    def _error_class(self, bases: "list[str]") -> "type[Exception]":
        """Return an exception class that stands for the solution's."""
        name = str(bases[0])
        if name not in self._errors:
            self._errors[name] = type(name, (_builtin_error(bases),), {})
        return self._errors[name]

    def _error(self, reply: "dict[str, Any]") -> Exception:
        bases = [str(each) for each in reply["raised"]]
        kind = self._errors.get(bases[0]) or _builtin_error(bases)
        arguments = [self.decode(each) for each in reply["args"]]
        try:
            return kind(*arguments)
        except Exception:
            return SolutionError(*arguments)


def _builtin_error(bases: "list[str]") -> "type[Exception]":
    for name in bases:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
            return kind
    return SolutionError


def _find_libraries(tests: "str | list[str]") -> "set[str]":
    """Return the names that tests use as libraries: `math` in `math.isclose(…)`."""
    found: set[str] = set()
    for text in [tests] if isinstance(tests, str) else tests:
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError):
            continue
        found |= {
            node.value.id
            for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
    return {name for name in found if _is_library(name)}


def _is_library(name: str) -> bool:
    if name in sys.stdlib_module_names or name in _ALIASES:
        return True
    try:
        return name != "solution" and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _import(name: str) -> "types.ModuleType | None":
    try:
        return importlib.import_module(name)
    except Exception:
        return None


def _first(values: "Iterator[Any]") -> "list[Any]":
    found: list[Any] = []
    for each in values:
        if len(found) == MOST_ITEMS:
            raise UnfitError("an iterator without end")
        found.append(each)
    return found


def _overwrite(old: Any, new: Any) -> None:
    """Give a list, dict or set of the tests the content that a call left in its copy."""
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, dict | set):
        old.clear()
        old.update(new)
    elif hasattr(old, "extend"):
        old.clear()
        old.extend(new)


class Remote:
    """An object in the solution's process: a function, a class or an object of a class.

    Calls, attributes, items, length, iteration and text are asked there. Equality is not: it is
    the same object, or a tuple with equal elements. There are no other operators.
    """

    def __init__(self, tests: Tests, number: int, plain: "tuple[Any, ...] | None") -> None:
        object.__setattr__(self, "_remote", (tests, number, plain))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it in the solution's process."""
        return _tests(self).operate("call", self, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return _tests(self).operate("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _tests(self).operate("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        _tests(self).operate("del", self, name)

    def __getitem__(self, key: Any) -> Any:
        return _tests(self).operate("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _tests(self).operate("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        _tests(self).operate("delitem", self, key)

    def __len__(self) -> int:
        return _tests(self).operate("len", self)

    def __bool__(self) -> bool:
        return _tests(self).operate("bool", self) is True

    def __iter__(self) -> Any:
        return _tests(self).operate("iter", self)

    def __next__(self) -> Any:
        return _tests(self).operate("next", self)

    def __str__(self) -> str:
        return _tests(self).operate("str", self)

    def __repr__(self) -> str:
        return _tests(self).operate("repr", self)

    def __await__(self) -> Any:
        yield from ()
        return _tests(self).operate("await", self)

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, *_: object) -> None:
        self.__getattr__("__exit__")(None, None, None)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and _tests(self).operate("isinstance", value, self) is True

    def __eq__(self, other: object) -> bool:
        plain = _plain(self)
        if isinstance(other, Remote):
            if plain is None or _plain(other) is None:
                return _number(self) == _number(other)
            return plain == _plain(other)
        return plain is not None and plain == other

    def __hash__(self) -> int:
        plain = _plain(self)
        return _number(self) if plain is None else hash(plain)


def _tests(remote: Remote) -> Tests:
    return object.__getattribute__(remote, "_remote")[0]


def _number(remote: Remote) -> int:
    return object.__getattribute__(remote, "_remote")[1]


def _plain(remote: Remote) -> "tuple[Any, ...] | None":
    return object.__getattribute__(remote, "_remote")[2]


class SolutionModule(types.ModuleType):
    """The module `solution` as tests see it; a name they replace is replaced in the solution."""

    def __init__(self, tests: Tests, names: "dict[str, Any]") -> None:
        super().__init__("solution")
        self.__dict__.update(names, __tests=tests)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__["__tests"].operate("set", self, name, value)
        self.__dict__[name] = value


def _collect(job: "dict[str, Any]", names: "dict[str, object]") -> "list[_Check]":
    """Return the tests: each statement of a list, a file's test functions, or the whole file."""
    tests: str | list[str] = job["tests"]
    entry_point = job["entry_point"]
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
    return found or ([_pass] if job["has_statements"] else [])


def _methods(kind: type) -> "list[_Check]":
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


def _alone(
    function: "Callable[..., object]", name: str, *, given: int = 0
) -> "Callable[..., object]":
    """Return a function if it needs no arguments besides the first `given`; else raise."""
    parameters = list(inspect.signature(function).parameters.values())[given:]
    if any(each.default is each.empty and each.kind in _WANTED for each in parameters):
        raise _NeedsArgumentsError(name)
    return function


_WANTED = (
    *(inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD),
    inspect.Parameter.KEYWORD_ONLY,
)


def _execute(text: str, names: "dict[str, object]") -> "dict[str, object]":
    # Runs a task's tests, which are its author's; only the sandbox limits them.
    space = {**names, "__name__": "tests"}
    exec(compile(ast.parse(text), "tests.py", "exec"), space)  # noqa: S102
    return {name: value for name, value in space.items() if names.get(name) is not value}


def _cases(case: "type[unittest.TestCase]") -> "list[unittest.TestCase]":
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
