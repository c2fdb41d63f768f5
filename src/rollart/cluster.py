"""The programming model: a `Cluster` of like workers, whose methods say how a call is shared out.

    class Counter(Worker):
        @register("split")
        def count(self, words: list[str]) -> list[int]: ...

    cluster = await Cluster.open(host, Counter, count=4)
    lengths = await cluster.call(Counter.count, words)      # each worker counted a quarter

A worker is a plain class: made from JSON options by whatever `Host` there is, in this process, in
others or on a machine far away, and its methods may be called directly too. `register` adds how
one call on the cluster becomes calls on its workers and their results one result. `hw_mapping`
sends a call to a worker on the hardware its task tag prefers; `serverless` sends a pure method to
a function instead of a worker. Calls start at once and return awaitables.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from types import MethodType
from typing import (
    Any,
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

from rollart.errors import InvariantError, UserError
from rollart.ports import Handle, Host
from rollart.types import Json

W = TypeVar("W")
P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

Mode: TypeAlias = Literal["all", "one", "rank_zero", "split"]
Arguments: TypeAlias = tuple[object, ...]


class Worker:
    """A member of a cluster: nothing but a name for the intent, so that readers find them."""


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

    def __init__(self, method: Callable[Concatenate[W, P], T], sharing: "Sharing[T, C]") -> None:
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
    mode: Literal["one", "rank_zero"],
) -> "Callable[[Callable[Concatenate[W, P], T]], Registered[W, P, T, T]]": ...
@overload
def register(
    mode: Literal["split"],
) -> "Callable[[Callable[Concatenate[W, P], list[T]]], Registered[W, P, list[T], list[T]]]": ...
@overload
def register(
    mode: "Sharing[T, C]",
) -> "Callable[[Callable[Concatenate[W, P], T]], Registered[W, P, T, C]]": ...
def register(mode: "Mode | Sharing[Any, Any]") -> "Callable[[Any], Registered[Any, Any, Any, Any]]":
    """Say how a cluster calls a method.

    "all": every worker, same arguments, a list of results. "one": the least busy worker.
    "rank_zero": the first worker. "split": the first argument, a sequence, is cut into as many
    even parts as there are workers, and the lists they return are joined in order. A `Sharing` of
    your own: anything else.
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


Invoke: TypeAlias = "Callable[[Function, str, Sequence[Json]], Awaitable[Json]]"
"""Calls a function by its method's name and arguments."""


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One worker of a cluster and where it is."""

    handle: Handle
    pool: str = ""
    in_flight: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Cluster(Generic[W]):
    """Like workers, called together."""

    members: list[Member]
    invoke: "Invoke | None" = None
    """What reaches functions; without it a serverless method runs on a worker."""
    _tasks: "set[asyncio.Future[Any]]" = field(default_factory=set["asyncio.Future[Any]"])

    @classmethod
    async def open(
        cls,
        host: Host,
        worker: type[W],
        *,
        pools: Sequence[str],
        options: Callable[[int], Mapping[str, Json]] = lambda _rank: {},
        invoke: "Invoke | None" = None,
    ) -> "Cluster[W]":
        """Make one worker in each of the pools named (a pool may be named several times)."""
        target = f"{worker.__module__}:{worker.__qualname__}"
        spawned = await asyncio.gather(
            *(
                host.spawn(target, options(rank), own_process=True, pool=pool)
                for rank, pool in enumerate(pools)
            ),
            return_exceptions=True,
        )
        failed = [each for each in spawned if isinstance(each, BaseException)]
        handles = [each for each in spawned if not isinstance(each, BaseException)]
        if failed:
            await asyncio.gather(*(handle.close() for handle in handles))
            raise failed[0]
        members = [
            Member(handle=handle, pool=pool) for handle, pool in zip(handles, pools, strict=True)
        ]
        return cls(members=members, invoke=invoke)

    def call(
        self, method: "Registered[W, P, T, C]", *args: P.args, **kwargs: P.kwargs
    ) -> "Awaitable[C]":
        """Start a call as its method says; arguments by position."""
        return self.call_tagged("", method, *args, **kwargs)

    def call_tagged(
        self, tag: str, method: "Registered[W, P, T, C]", *args: P.args, **kwargs: P.kwargs
    ) -> "Awaitable[C]":
        """Start a call of a task domain, which may prefer a pool."""
        if kwargs:
            raise UserError(f"{method.name}: give arguments of a cluster's call by position")
        if method.function is not None and self.invoke is not None:
            work = self.invoke(method.function, method.name, cast("Sequence[Json]", args))
            return self._start(cast("Awaitable[C]", work))
        if method.is_single:
            member = self._choose(method.affinity.get(tag, method.affinity.get("default", "")))
            return self._start(cast("Awaitable[C]", _call(member, method.name, args)))
        divided = method.sharing.divide(len(self.members), args)
        if len(divided) != len(self.members):
            wrong = f"{len(divided)} shares for {len(self.members)} workers"
            raise InvariantError(f"{method.name}: {wrong}")
        return self._start(self._call_all(method, divided))

    async def close(self) -> None:
        """End every worker."""
        await asyncio.gather(*(member.handle.close() for member in self.members))

    def _start(self, work: "Awaitable[C]") -> "Awaitable[C]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _call_all(
        self, method: "Registered[W, P, T, C]", divided: Sequence[Arguments | None]
    ) -> C:
        calls = [
            _call(member, method.name, args)
            for member, args in zip(self.members, divided, strict=True)
            if args is not None
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return method.sharing.collect(cast("list[T]", results))

    def _choose(self, pool: str) -> Member:
        preferred = [member for member in self.members if member.pool == pool]
        return min(preferred or self.members, key=lambda member: member.in_flight)


def _call(member: Member, name: str, args: Arguments) -> Awaitable[Any]:
    """Call a member, which counts as busy from now on."""
    member.in_flight += 1

    async def call() -> Any:
        try:
            return await member.handle.call(name, *args)
        finally:
            member.in_flight -= 1

    return call()


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
    "one": Sharing(divide=_to_first, collect=_first),
    "rank_zero": Sharing(divide=_to_first, collect=_first),
    "split": Sharing(divide=_in_parts, collect=_joined),
}
