"""Tests of a task, and how a solution is judged by them from outside its process.

Tests are plain calls if that is enough: objects `{"call", "args", "named", "expected"}`, or
statements `assert f(1, 2) == 3` made of literals. The calls are sent to the solution, which runs in
a sandbox (`code_solution.py`), and its results are compared here. Other tests are scripts: they run
in a second sandbox (`code_runner.py`) that calls the solution in the first one; this module carries
the calls between the two. No expected value and no verdict ever enters the solution's sandbox.

A sandbox that runs scripts is used again: it forks for each job, so only its first start counts.
"""

import ast
import asyncio
import builtins
import json
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast
from weakref import WeakKeyDictionary

from rollart.errors import ScoreError
from rollart.ports import Conversation, Sandbox
from rollart.rewards.code_solution import decode, encode
from rollart.types import Json, Program, ProgramLimits

_HERE = Path(__file__).parent
_SOLUTION = (_HERE / "code_solution.py").read_bytes()
_RUNNER = (_HERE / "code_runner.py").read_bytes()
MOST_REPLY_BYTES = 16 * 2**20
"""Bytes that all results of a solution may have together."""
LAST_WORD_S = 1.0
"""Seconds in which a job that was given up may end before its sandbox is killed."""
ENDLESS = {"wall_s": 1e9, "cpu_s": 1e6, "output_bytes": 2**50}
"""Limits of a sandbox that runs scripts: each job has its own."""
_OVER = b'{"over": 1}\n'
_NEVER = object()
"""What an object of the solution's own class is compared as: it equals nothing."""

Rule: TypeAlias = Literal["python", "json"]
"""How a result is compared: as Python's `==` does, or as JSON (see `are_equal`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCall:
    """A call of a solution's function and the value it should return.

    Example:
        >>> PlainCall(function="add", args=(1, 2), named={}, expected=3, rule="python")

    """

    function: str
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    expected: Any
    rule: Rule

    def request(self) -> bytes:
        """Return the line that asks the solution for it."""
        message = {
            "op": "call",
            "args": [{"name": self.function}, *(encode(each, _refuse) for each in self.args)],
            "named": {name: encode(each, _refuse) for name, each in self.named.items()},
        }
        return json.dumps(message).encode() + b"\n"

    def holds(self, line: bytes) -> bool:
        """Return whether a reply has the expected value."""
        try:
            reply = json.loads(line)
            return "ok" in reply and are_equal(self.expected, reply["ok"], self.rule)
        except (ValueError, TypeError, RecursionError, LookupError):
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTests:
    """Tests that have to be run as Python.

    Example:
        >>> ScriptTests(text="def test_one(): assert add(1, 0) == 1", entry_point="")

    """

    text: str | tuple[str, ...]
    """A test file, or a tuple of statements."""
    entry_point: str
    has_statements: bool = False
    """Whether the file itself is a test, because it has more than definitions."""


@dataclass(slots=True, kw_only=True)
class Verdicts:
    """What the test runner has reported.

    Example:
        >>> Verdicts(said=[["total", "2"], ["passed"], ["failed"]]).count()
        (1, 2)

    """

    said: list[list[str]] = field(default_factory=list[list[str]])
    is_broken: bool = False
    """Whether the solution could not be loaded."""

    def count(self) -> tuple[int, int]:
        """Return how many tests passed and how many there were."""
        totals = [int(words[1]) for words in self.said if words[0] == "total"]
        total = totals[0] if totals else 0
        return min(sum(words[0] == "passed" for words in self.said), total), total

    def unfit(self) -> str:
        """Return why no solution could pass the tests; "" if there is no such reason."""
        for words in self.said:
            if words[0] == "unfit" and words[1] == "arguments":
                return f"tests without arguments, which {words[2]} takes"
            if words[0] == "unfit":
                return f"tests that pass plain values, not {' '.join(words[2:])}"
        return ""


def _refuse(value: Any) -> Any:
    raise TypeError(type(value).__name__)


def are_equal(expected: Any, given: Any, rule: Rule) -> bool:  # noqa: PLR0911 one for each kind
    """Return whether a result, still encoded, equals the expected value.

    Nothing of the result is made into an object before its type and size are those of the expected
    value. By "python", values are equal as Python's plain values are. By "json", lists and tuples
    are the same, numbers are equal within a relative 1e-6 (integers exactly), true and false are
    no numbers, NaN equals NaN, and keys of dicts that are numbers are compared as texts.
    """
    tag, content = next(iter(given.items())) if isinstance(given, dict) else ("", given)
    if tag == "ref" and len(content) > 1:
        # A named tuple: an object of the solution with its elements.
        tag, content = next(iter(content[1].items()))
    match expected:
        case None | str():
            return not tag and type(content) is type(expected) and content == expected
        case bool() if rule == "json":
            return content is expected
        case bool() | int() | float():
            return _are_equal_numbers(expected, tag, content, rule)
        case list() | tuple():
            wanted = "" if isinstance(expected, list) else "tuple"
            is_kind = tag in ("", "tuple") if rule == "json" else tag == wanted
            return is_kind and _are_equal_items(cast("list[Any]", expected), content, rule)
        case dict():
            return tag in ("dict", "counter", "ordered") and _are_equal_dicts(
                cast("dict[Any, Any]", expected), content, rule
            )
        case set() | frozenset():
            if tag not in ("set", "frozenset") or len(content) != len(cast("set[Any]", expected)):
                return False
            return {decode(each, _opaque) for each in content} == expected
        case _:
            return tag != "" and decode(given, _opaque) == expected


def _opaque(tag: str, content: Any) -> Any:
    return _NEVER


def _are_equal_numbers(expected: float, tag: str, content: Any, rule: Rule) -> bool:
    given = decode({tag: content}, _opaque) if tag in ("int", "float") else content
    if not isinstance(given, int | float) or (isinstance(given, bool) and rule == "json"):
        return False
    if given == expected or rule == "python":
        return given == expected
    if isinstance(given, int) and isinstance(expected, int):
        return False
    are_nan = math.isnan(given) and math.isnan(expected)
    return are_nan or math.isclose(given, expected, rel_tol=1e-6, abs_tol=1e-9)


def _are_equal_items(expected: Sequence[Any], given: Any, rule: Rule) -> bool:
    if not isinstance(given, list) or len(cast("list[Any]", given)) != len(expected):
        return False
    pairs = zip(expected, cast("list[Any]", given), strict=True)
    return all(are_equal(one, other, rule) for one, other in pairs)


def _are_equal_dicts(expected: Mapping[Any, Any], given: Any, rule: Rule) -> bool:
    if len(given) != len(expected):
        return False
    items = {decode(key, _opaque): tree for key, tree in given}
    if rule == "json":
        items = {_key_text(key): tree for key, tree in items.items()}
    return items.keys() == expected.keys() and all(
        are_equal(value, items[key], rule) for key, value in expected.items()
    )


def _key_text(key: Any) -> Any:
    is_number = isinstance(key, int | float) and not isinstance(key, bool)
    return str(key) if is_number else key


# How tests are read: plain calls if possible, else a script.

_DEFINITIONS = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom),
    *(ast.Assign, ast.AnnAssign, ast.Pass),
)


@lru_cache(maxsize=256)
def read_script(
    text: str | tuple[str, ...], entry_point: str
) -> tuple[PlainCall, ...] | ScriptTests | None:
    """Return a test file or statements as tests; None if there is no test in them."""
    is_file = isinstance(text, str)
    script = ScriptTests(text=text, entry_point=entry_point, has_statements=True)
    try:
        trees = [ast.parse(each) for each in ((text,) if is_file else text)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return script
    if not is_file and None not in (calls := [_read_assertion(tree) for tree in trees]):
        return cast("tuple[PlainCall, ...]", tuple(calls))
    if any(map(_has_statements, trees)):
        return script
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {node.name for node in nodes if isinstance(node, functions)}
    is_called = bool(entry_point) and "check" in names
    if is_file and (is_called or any(name.startswith("test") for name in names)):
        return replace(script, has_statements=False)
    return None


def _has_statements(tree: ast.Module) -> bool:
    """Return whether a file has top-level statements other than definitions."""
    return not all(
        isinstance(node, _DEFINITIONS)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.If) and "__main__" in ast.dump(node.test))
        for node in tree.body
    )


def _read_assertion(tree: ast.Module) -> PlainCall | None:
    """Return the call of `assert f(literals) == literal`; None for any other statement."""
    match tree.body:
        case [
            ast.Assert(
                test=ast.Compare(
                    left=ast.Call(func=ast.Name(id=name), args=args, keywords=keywords),
                    ops=[ast.Eq()],
                    comparators=[expected],
                )
            )
        ] if not hasattr(builtins, name):
            pass
        case _:
            return None
    try:
        call = PlainCall(
            function=name,
            args=tuple(ast.literal_eval(each) for each in args),
            named={str(each.arg): ast.literal_eval(each.value) for each in keywords},
            expected=ast.literal_eval(expected),
            rule="python",
        )
        call.request()
        return call if all(each.arg for each in keywords) else None
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


_CALL_FIELDS = {"call", "args", "named", "expected"}


def read_calls(tests: Sequence[Json]) -> tuple[PlainCall, ...] | None:
    """Return tests that are objects as calls; None if one cannot be read."""
    calls: list[PlainCall] = []
    for each in tests:
        if not isinstance(each, dict) or not {"call", "expected"} <= each.keys() <= _CALL_FIELDS:
            return None
        name, args, named = each["call"], each.get("args", []), each.get("named", {})
        if not (isinstance(name, str) and isinstance(args, list) and isinstance(named, dict)):
            return None
        expected = each["expected"]
        call = PlainCall(
            function=name, args=tuple(args), named=named, expected=expected, rule="json"
        )
        calls.append(call)
    return tuple(calls)


# How a solution is judged.


def solution_program(solution: bytes, *, python: str, limits: ProgramLimits) -> Program:
    """Return the program that loads a solution and answers calls to it."""
    return Program(
        argv=(python, "code_solution.py"),
        files={"code_solution.py": _SOLUTION, "solution.py": solution},
        limits=replace(limits, output_bytes=max(limits.output_bytes, MOST_REPLY_BYTES)),
    )


def count_calls(calls: Sequence[PlainCall], output: bytes) -> int:
    """Return how many calls returned what they should, by the solution's replies."""
    # The first line says what the solution defines; a line without an end was cut.
    lines = output.split(b"\n")[1:-1]
    return sum(call.holds(line) for call, line in zip(calls, lines, strict=False))


class ScriptRunner:
    """A sandbox that runs test scripts, one job at a time."""

    def __init__(self, sandbox: Sandbox, python: str) -> None:
        program = Program(
            argv=(python, "code_runner.py"),
            files={"code_runner.py": _RUNNER, "code_solution.py": _SOLUTION},
            limits=replace(sandbox.limits, **ENDLESS),  # pyright: ignore[reportArgumentType]
        )
        self._conversation: asyncio.Future[Conversation] = asyncio.Future()
        self._is_over = asyncio.Event()
        self._task = asyncio.create_task(sandbox.run(program, talk=self._hold, is_trusted=True))
        self._task.add_done_callback(_retrieve)

    @property
    def is_alive(self) -> bool:
        """Whether it can take a job."""
        return not self._task.done()

    def close(self) -> None:
        """End the sandbox."""
        self._is_over.set()

    async def talk(self) -> Conversation:
        """Return the conversation with the running script runner."""
        await asyncio.wait({self._task, self._conversation}, return_when=asyncio.FIRST_COMPLETED)
        if not self._conversation.done():
            raise self._task.exception() or ScoreError("the sandbox of the tests ended at once")
        return self._conversation.result()

    async def _hold(self, conversation: Conversation) -> None:
        # Its start is not part of a solution's time.
        if await conversation.read_line() == b"=ready\n":
            self._conversation.set_result(conversation)
            await self._is_over.wait()


_idle: WeakKeyDictionary[Sandbox, dict[str, list[ScriptRunner]]] = WeakKeyDictionary()
_ending: set[asyncio.Task[None]] = set()


async def judge(
    solution: Conversation,
    tests: ScriptTests,
    found: Verdicts,
    *,
    runners: "Runners",
    runner: ScriptRunner,
    cpu_s: float,
) -> None:
    """Run a script against a solution; note each verdict when it is known."""
    try:
        hello = await solution.read_line()
    except asyncio.CancelledError:
        runners.give_back(runner)
        raise
    found.is_broken = not hello.endswith(b"\n") or hello.startswith(b'{"broken"')
    if found.is_broken:
        runners.give_back(runner)
        return
    job = {
        "tests": tests.text if isinstance(tests.text, str) else list(tests.text),
        "entry_point": tests.entry_point,
        "has_statements": tests.has_statements,
        "cpu_s": math.ceil(cpu_s),
    }
    async with runners.use(runner) as tester:
        await tester.send(json.dumps(job).encode() + b"\n" + hello)
        while (line := await tester.read_line()) not in (b"", b"=end\n"):
            if line.startswith(b"="):
                found.said.append(line[1:].decode(errors="replace").split())
                continue
            await solution.send(line[1:])
            reply = await solution.read_line()
            if not reply.endswith(b"\n"):
                return
            await tester.send(reply)


class Runners:
    """Sandboxes that run scripts beside one sandbox of solutions."""

    def __init__(self, sandbox: Sandbox, python: str) -> None:
        self._sandbox = sandbox
        self._python = python
        self._idle = _idle.setdefault(sandbox, {}).setdefault(python, [])

    async def acquire(self) -> ScriptRunner:
        """Return a runner that has no job, once it is ready."""
        while self._idle:
            runner = self._idle.pop()
            if runner.is_alive:
                return runner
        runner = ScriptRunner(self._sandbox, self._python)
        try:
            await runner.talk()
        except asyncio.CancelledError:
            # It has no job yet, so the next one can use it.
            self._idle.append(runner)
            raise
        return runner

    def give_back(self, runner: ScriptRunner) -> None:
        """Keep a runner without a job for the next."""
        self._idle.append(runner)

    @asynccontextmanager
    async def use(self, runner: ScriptRunner) -> AsyncGenerator[Conversation]:
        """Lend the conversation with a runner for one job, and keep the runner for the next."""
        lent = _Lent(await runner.talk())
        try:
            yield lent
        finally:
            if lent.has_ended:
                self._idle.append(runner)
            else:
                ending = asyncio.create_task(self._end_job(runner, lent))
                _ending.add(ending)
                ending.add_done_callback(_ending.discard)

    async def _end_job(self, runner: ScriptRunner, lent: "_Lent") -> None:
        """Wait a moment for the end of a job that lost its solution; else end its sandbox."""
        try:
            async with asyncio.timeout(LAST_WORD_S):
                await lent.send(_OVER)
                while await lent.read_line() not in (b"", b"=end\n"):
                    pass
        except TimeoutError:
            pass
        if lent.has_ended:
            self._idle.append(runner)
        else:
            runner.close()


class _Lent:
    """A conversation that knows whether the last thing it heard was the end of a job."""

    def __init__(self, inner: Conversation) -> None:
        self.has_ended = False
        self._inner = inner

    async def send(self, data: bytes) -> None:
        await self._inner.send(data)

    async def read_line(self) -> bytes:
        line = await self._inner.read_line()
        self.has_ended = line == b"=end\n"
        return line


def _retrieve(task: "asyncio.Task[Any]") -> None:
    """Read a task's error, so that asyncio does not report it as forgotten."""
    if not task.cancelled():
        task.exception()
