"""The solution's side of a test: a program that loads a solution and answers calls to it.

It runs in a sandbox of its own, with the solution and nothing else: tests, expected values and
verdicts are in other processes. Each line of its input is a request (an operation and its
arguments), each line of its output a reply, both as JSON. Whatever the solution does here, it can
change only the values that it returns.

Values cross as plain JSON with tags (`encode`, `decode`): None, booleans, numbers, texts, bytes,
lists, tuples, dicts, sets and a few types of the standard library. Anything else, such as an
object of the solution's own class, stays here and crosses as a number (`ref`). The test runner and
the host use the same codec; it needs the standard library only, on Python 3.9 or later.
"""

import builtins
import datetime
import io
import json
import math
import operator
import os
import sys
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

MOST_ITEMS = 100_000
"""Most elements read from an iterator that is passed as an argument."""
MOST_PRINTED = 100_000
"""Most characters kept of what one call prints."""
_DIRECT = 2**53
"""Integers up to this size are JSON numbers, others hexadecimal texts."""
_MUTABLE = (list, dict, set, bytearray, deque)
_SIZED = (*_MUTABLE, tuple, frozenset, str, bytes)
_PLAIN: "tuple[tuple[type, Callable[[Any, Any], Any], Any], ...]" = (
    (int, int.__add__, 0),
    (float, float.__add__, 0.0),
    (str, str.__add__, ""),
    (bytes, bytes.__add__, b""),
)
_TEXTS: "dict[type, str]" = {
    Decimal: "decimal",
    Fraction: "fraction",
    datetime.date: "date",
    datetime.datetime: "datetime",
    datetime.time: "time",
}
_SEQUENCES: "dict[type, str]" = {
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
}
_MAPPINGS: "dict[type, str]" = {dict: "dict", Counter: "counter", OrderedDict: "ordered"}
_MAKE: "dict[str, Callable[[Any], Any]]" = {
    "int": lambda text: int(text, 16),
    "float": float,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda pair: complex(pair[0], pair[1]),
    "range": lambda ends: range(*ends),
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "decimal": Decimal,
    "fraction": Fraction,
    "date": datetime.date.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
    "time": datetime.time.fromisoformat,
}
_FILL: "dict[str, Callable[[Any], Any]]" = {
    **{name: kind for kind, name in _SEQUENCES.items()},
    "iterator": iter,
}


class UnfitError(BaseException):
    """A value that cannot be sent."""


def encode(value: Any, other: "Callable[[Any], Any]") -> Any:  # noqa: PLR0911 one for each kind
    """Return a value as JSON; `other` encodes what is not plain."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if -_DIRECT <= value <= _DIRECT else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is list:
        return [encode(each, other) for each in value]
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [encode(each, other) for each in value]}
    if kind in _MAPPINGS:
        pairs = [[encode(key, other), encode(item, other)] for key, item in value.items()]
        return {_MAPPINGS[kind]: pairs}
    if kind in _TEXTS:
        return {_TEXTS[kind]: value.isoformat() if hasattr(value, "isoformat") else str(value)}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [encode(value.real, other), encode(value.imag, other)]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind is datetime.timedelta:
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    return other(value)


def decode(tree: Any, other: "Callable[[str, Any], Any]") -> Any:  # noqa: PLR0911 the same
    """Return the value that `encode` wrote; `other` decodes tags that are not plain."""
    if isinstance(tree, list):
        return [decode(each, other) for each in tree]
    if not isinstance(tree, dict):
        return tree
    ((tag, content),) = tree.items()
    if tag == "complex":
        return complex(*(decode(each, other) for each in content))
    if tag in _MAKE:
        return _MAKE[tag](content)
    if tag in _FILL:
        return _FILL[tag]([decode(each, other) for each in content])
    if tag in _MAPPINGS.values():
        pairs = [(decode(key, other), decode(item, other)) for key, item in content]
        # Not Counter(pairs), which would count them.
        return {"counter": Counter, "ordered": OrderedDict}.get(tag, dict)(dict(pairs))
    return other(tag, content)


class Lines:
    """Messages as lines of JSON through two descriptors."""

    def __init__(self, read_fd: int, write_fd: int, mark: str = "") -> None:
        self.write_fd = write_fd
        self._read_fd = read_fd
        self._mark = mark
        self._rest = b""

    def read(self) -> "dict[str, Any] | None":
        """Return the next message; None after the last."""
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            data = os.read(self._read_fd, 65536)
            if not data:
                return None
            parts.append(data)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return json.loads(line)

    def write(self, message: "dict[str, Any]") -> None:
        """Send a message."""
        view = memoryview((self._mark + json.dumps(message) + "\n").encode())
        while view:
            view = view[os.write(self.write_fd, view) :]

    def clear(self) -> None:
        """Drop what was read and not used."""
        self._rest = b""


class Peer:
    """One side of a conversation in which each side may call the other."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.kept: list[Any] = []

    def ask(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Send a request and return its reply; meanwhile answer the other side's requests."""
        self.lines.write(request)
        while True:
            message = self.lines.read()
            if message is None or "over" in message:
                os._exit(0)
            if "op" not in message:
                return message
            self.lines.write(self.answer(message))

    def answer(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Return the reply to a request."""
        raise NotImplementedError

    def keep(self, value: Any) -> int:
        """Keep a value that the other side knows by number; return the number."""
        self.kept.append(value)
        return len(self.kept) - 1

    def encode(self, value: Any) -> Any:
        """Return a value as JSON."""
        return encode(value, self.hide)

    def decode(self, tree: Any) -> Any:
        """Return a value from JSON."""
        return decode(tree, self.show)

    def hide(self, value: Any) -> Any:
        """Return what stands for a value that is not plain."""
        raise NotImplementedError

    def show(self, tag: str, content: Any) -> Any:
        """Return the value that something of the other side stands for."""
        raise NotImplementedError

    def raised(self, error: BaseException) -> "dict[str, Any]":
        """Return the reply for a call that raised."""
        bases = [kind.__name__ for kind in type(error).__mro__]
        try:
            arguments = [self.encode(each) for each in error.args]
        except (UnfitError, RecursionError, ValueError):
            arguments = [str(error)]
        return {"raised": bases, "args": arguments}


def _await(awaitable: Any) -> Any:
    import asyncio  # noqa: PLC0415 - most of the start time, and few solutions need it

    async def finish() -> Any:
        return await awaitable

    return asyncio.run(finish())


OPERATIONS: "dict[str, Callable[..., Any]]" = {
    "call": lambda function, *arguments, **named: function(*arguments, **named),  # pyright: ignore[reportUnknownLambdaType]
    "get": getattr,
    "set": setattr,
    "del": delattr,
    "item": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "len": len,
    "iter": iter,
    "next": next,
    "str": str,
    "repr": repr,
    "bool": bool,
    "isinstance": isinstance,
    "await": _await,
}


class Solution(Peer):
    """Answers calls to a loaded solution."""

    def __init__(self, lines: Lines, module: types.ModuleType) -> None:
        super().__init__(lines)
        self._module = module
        self._numbers: dict[int, int] = {}

    def names(self) -> "list[list[Any]]":
        """Return the solution's names with their values."""
        found = vars(self._module)
        names = [name for name in found if not str(name).startswith("__")]
        return [[name, self._constant(found[name])] for name in names]

    def _constant(self, value: Any) -> Any:
        """Encode a value that the solution has defined; a large or endless one as a number."""
        try:
            is_large = type(value) in _SIZED and len(value) > MOST_ITEMS
            return self.hide(value) if is_large else self.encode(value)
        except RecursionError:
            return self.hide(value)

    def answer(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Return the reply to a request: what the operation returned or raised."""
        before, sys.stdout = sys.stdout, io.StringIO()
        printed = sys.stdout
        reply: dict[str, Any]
        try:
            arguments = [self.decode(each) for each in request["args"]]
            named = {name: self.decode(each) for name, each in request.get("named", {}).items()}
            returned = OPERATIONS[request["op"]](*arguments, **named)
            reply = {"ok": self.encode(returned)}
            changed = [
                [number, self.encode(each)]
                for number, each in enumerate(arguments)
                if type(each) in _MUTABLE and self.encode(each) != request["args"][number]
            ]
            if changed:
                reply["changed"] = changed
        except BaseException as error:
            reply = self.raised(error)
        finally:
            sys.stdout = before
        if text := printed.getvalue()[:MOST_PRINTED]:
            reply["printed"] = text
        return reply

    def hide(self, value: Any) -> Any:
        """Return what stands for an object of the solution."""
        kind = type(value)
        if kind is types.ModuleType:
            return {"module": value.__name__}
        if kind is type and getattr(builtins, value.__name__, None) is value:
            return {"builtin": value.__name__}
        if isinstance(value, type) and issubclass(value, Exception):
            return {"exception": [base.__name__ for base in value.__mro__]}
        for plain, add, nothing in _PLAIN:
            if isinstance(value, plain):
                # Of a subclass, such as an enumeration's, the value as the base class has it.
                return encode(add(value, nothing), self.hide)
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = self.keep(value)
        if isinstance(value, tuple):
            return {"ref": [number, self.encode(tuple(value))]}
        return {"ref": [number]}

    def show(self, tag: str, content: Any) -> Any:
        """Return the object that the other side names, or a function of the other side."""
        if tag == "name":
            return getattr(self._module, content)
        if tag == "solution":
            return self._module
        if tag == "ref":
            return self.kept[content[0]]
        if tag == "builtin":
            return getattr(builtins, content)
        if tag == "import":
            return getattr(__import__(content[0], fromlist=["_"]), content[1])
        if tag == "function":
            return self._function(content)
        raise ValueError(tag)

    def _function(self, number: int) -> "Callable[..., Any]":
        def function(*arguments: Any, **named: Any) -> Any:
            reply = self.ask(
                {
                    "op": "callback",
                    "number": number,
                    "args": [self.encode(each) for each in arguments],
                    "named": {name: self.encode(each) for name, each in named.items()},
                }
            )
            if "ok" in reply:
                return self.decode(reply["ok"])
            raise self._error(reply)

        return function

    def _error(self, reply: "dict[str, Any]") -> Exception:
        arguments = [self.decode(each) for each in reply["args"]]
        for name in reply["raised"]:
            kind = getattr(self._module, name, getattr(builtins, name, None))
            if isinstance(kind, type) and issubclass(kind, Exception):
                return kind(*arguments)
        return Exception(*arguments)


def take_streams() -> "tuple[int, int]":
    """Return copies of the input and output, and give this process none of them."""
    copies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    return copies


def requests(lines: Lines) -> "Iterator[dict[str, Any]]":
    """Yield the requests until the last."""
    while (request := lines.read()) is not None:
        yield request


def main() -> None:
    """Load the solution, say what it has, and answer calls to it."""
    lines = Lines(*take_streams())
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        solution = Solution(lines, __import__("solution"))
        names = solution.names()
    except BaseException as error:
        lines.write({"broken": type(error).__name__})
        os._exit(0)
    lines.write({"names": names})
    for request in requests(lines):
        lines.write(solution.answer(request))
    os._exit(0)


if __name__ == "__main__":
    main()
