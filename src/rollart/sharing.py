"""Sharing: how a call on several like workers becomes calls on each, and their results one result.

    class Counter(Worker):
        @register("split")
        def count(self, words: list[str]) -> list[int]: ...

A worker is a plain class, made from JSON options by whatever `Host` there is; its methods may be
called directly too. `register` says how a `Cluster` calls one. `hw_mapping` sends a call to a
worker on the hardware its task tag prefers; `serverless` sends a pure method to a function instead
of a worker. Nothing here calls anything: see `cluster`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from types import MethodType
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from rollart.errors import UserError

W = TypeVar("W")
P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

Mode: TypeAlias = Literal["all", "together", "one", "rank_zero", "split"]
Arguments: TypeAlias = tuple[object, ...]


class Worker:
    """A member of a cluster."""

    target: ClassVar[str] = ""
    """What is made, as `module:Class`, where this class only says what it can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing(Generic[T, C]):
    """How one call becomes several, and several results one."""

    divide: Callable[[int, Arguments], Sequence[Arguments | None]]
    """Takes the number of workers and the call's arguments; None leaves that worker out."""
    collect: Callable[[Sequence[T]], C]
    """Takes the results of the workers that were called, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """Where a pure method runs instead of on a worker."""

    url: str


class Registered(Generic[W, P, T, C]):
    """A worker's method that a cluster can call; on a worker it is the method itself."""

    def __init__(self, method: Callable[Concatenate[W, P], T], sharing: Sharing[T, C]) -> None:
        self.method = method
        self.sharing = sharing
        self.is_single = False
        """Whether any one worker will do: the least busy is taken."""
        self.affinity: Mapping[str, str] = {}
        """The pool each task tag prefers; "default" stands for the others."""
        self.function: Function | None = None
        self.__doc__ = method.__doc__

    @property
    def name(self) -> str:
        """The method's name."""
        return cast("Any", self.method).__name__

    @overload
    def __get__(self, worker: None, owner: type) -> Self: ...
    @overload
    def __get__(self, worker: W, owner: type) -> Callable[P, T]: ...
    def __get__(self, worker: W | None, owner: type) -> "Self | Callable[P, T]":
        if worker is None:
            return self
        return cast("Callable[P, T]", MethodType(self.method, worker))


@overload
def register(
    mode: Literal["all"],
) -> "Callable[[Callable[Concatenate[W, P], T]], Registered[W, P, T, list[T]]]": ...
@overload
def register(
    mode: Literal["together", "one", "rank_zero"],
) -> "Callable[[Callable[Concatenate[W, P], T]], Registered[W, P, T, T]]": ...
@overload
def register(
    mode: Literal["split"],
) -> "Callable[[Callable[Concatenate[W, P], list[T]]], Registered[W, P, list[T], list[T]]]": ...
@overload
def register(
    mode: Sharing[T, C],
) -> "Callable[[Callable[Concatenate[W, P], T]], Registered[W, P, T, C]]": ...
def register(mode: Mode | Sharing[Any, Any]) -> "Callable[[Any], Registered[Any, Any, Any, Any]]":
    """Say how a cluster calls a method.

    "all": every worker, same arguments, a list of results. "together": the same, but they work on
    one thing and the first speaks for all. "one": the least busy worker. "rank_zero": the first
    worker. "split": the first argument, a sequence, is cut into as many even parts as there are
    workers, and the lists they return are joined in order. A `Sharing` of your own: anything else.
    """

    def mark(method: Callable[..., Any]) -> Registered[Any, Any, Any, Any]:
        sharing = mode if isinstance(mode, Sharing) else _SHARINGS[mode]
        registered = Registered(method, sharing)
        registered.is_single = mode == "one"
        return registered

    return mark


def hw_mapping(
    affinity: Mapping[str, str],
) -> "Callable[[Registered[W, P, T, C]], Registered[W, P, T, C]]":
    """Send each call to a worker of the pool its `tag` prefers, if there is one; else to any."""

    def mark(registered: "Registered[W, P, T, C]") -> "Registered[W, P, T, C]":
        if not registered.is_single:
            raise UserError(f'{registered.name}: hw_mapping chooses one worker: register("one")')
        registered.affinity = affinity
        return registered

    return mark


def serverless(url: str) -> "Callable[[Registered[W, P, T, C]], Registered[W, P, T, C]]":
    """Send a pure method to the function at a URL; arguments and result are JSON values."""

    def mark(registered: "Registered[W, P, T, C]") -> "Registered[W, P, T, C]":
        if not registered.is_single:
            raise UserError(f'{registered.name}: a function answers one call: register("one")')
        registered.function = Function(url=url)
        return registered

    return mark


def _to_all(count: int, args: Arguments) -> list[Arguments | None]:
    return [args] * count


def _to_first(count: int, args: Arguments) -> list[Arguments | None]:
    return [args, *[None] * (count - 1)]


def _in_parts(count: int, args: Arguments) -> list[Arguments | None]:
    rows, *rest = args
    if not isinstance(rows, Sequence):
        raise UserError(f"a split call divides its first argument, a sequence; it was {rows!r}")
    rows = cast("Sequence[object]", rows)
    edges = [len(rows) * number // count for number in range(count + 1)]
    return [(rows[start:end], *rest) if end > start else None for start, end in pairwise(edges)]


def _joined(results: Sequence[list[Any]]) -> list[Any]:
    return list(chain(*results))


def _first(results: Sequence[Any]) -> Any:
    return results[0]


_SHARINGS: Mapping[str, Sharing[Any, Any]] = {
    "all": Sharing(divide=_to_all, collect=list),
    "together": Sharing(divide=_to_all, collect=_first),
    "one": Sharing(divide=_to_first, collect=_first),
    "rank_zero": Sharing(divide=_to_first, collect=_first),
    "split": Sharing(divide=_in_parts, collect=_joined),
}
