"""The programming model: a `WorkerGroup` of like workers, called together.

    class Counter(Worker):
        @register("split")
        def count(self, words: list[str]) -> list[int]: ...

    group = await WorkerGroup.open(host, Counter, pools=["", "", "", ""])
    lengths = await group.call(Counter.count, words)      # each worker counted a quarter

A worker is a plain class, made from JSON options by any `Host`: in this process, in others or on
another machine; its methods may be called directly too. `register` says how a call on the group
becomes calls on its workers, and their results one result. `hw_mapping` sends a call to a worker on
the hardware its task tag prefers; `serverless` sends a pure method to a function instead of a
worker.

Calls start at once and return awaitables. Workers may join and leave; a call is shared among those
that are members when it starts. A worker whose process died fails the call that finds out, and
every later call that needs this very worker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

from rollart.errors import ActorDiedError, InvariantError, UserError
from rollart.ports import Handle, Host
from rollart.types import Json

W = TypeVar("W")
P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

Mode: TypeAlias = Literal["all", "together", "one", "rank_zero", "split"]
Arguments: TypeAlias = tuple[object, ...]


class Worker:
    """A member of a group.

    Example:
        >>> class Counter(Worker):
        ...     @register("all")
        ...     def count(self) -> int:
        ...         return 1

    """

    target: ClassVar[str] = ""
    """The class to make, as `module:Class`, if this one only declares its methods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing(Generic[T, C]):
    """How one call becomes several, and several results one.

    Example:
        >>> Sharing(divide=lambda count, args: [args] * count, collect=sum)

    """

    divide: Callable[[int, Arguments], Sequence[Arguments | None]]
    """Takes the number of workers and the call's arguments; None skips that worker."""
    collect: Callable[[Sequence[T]], C]
    """Takes the results of the workers that were called, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """Where a pure method runs instead of on a worker.

    Example:
        >>> Function(url="https://rewards.example/score")

    """

    url: str


class Registered(Generic[W, P, T, C]):
    """A worker's method that a group can call; on a worker it is the method itself."""

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
    """Say how a group calls a method.

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


Invoke: TypeAlias = "Callable[[Function, str, Sequence[Json]], Awaitable[Json]]"
"""Calls a function by its method's name and arguments; `HttpMethods` is one, over HTTP."""


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerRef:
    """One worker of a group and where it is.

    Example:
        >>> WorkerRef(handle=handle, pool="compute")

    """

    handle: Handle
    pool: str = ""
    in_flight: int = 0
    is_dead: bool = False
    """Whether a call found its process dead: it gets no call that another worker can take."""


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerGroup(Generic[W]):
    """Like workers, called together.

    Example:
        >>> group = await WorkerGroup.open(host, Counter, pools=["compute", "compute"])
        >>> await group.call(Counter.count)
        [1, 1]

    """

    members: list[WorkerRef]
    invoke: "Invoke | None" = None
    """Calls functions for methods that are `serverless`."""
    _tasks: "set[asyncio.Future[Any]]" = field(default_factory=set["asyncio.Future[Any]"])

    @classmethod
    async def open(
        cls,
        host: Host,
        worker: type[W],
        *,
        pools: Sequence[str],
        options: Callable[[int], Mapping[str, Json]] = lambda _rank: {},
        own_process: bool = True,
        invoke: "Invoke | None" = None,
    ) -> "WorkerGroup[W]":
        """Make one worker in each of the pools named (a pool may be named several times).

        They are made at once; if one cannot be, the others are ended.
        """
        target = getattr(worker, "target", "") or f"{worker.__module__}:{worker.__qualname__}"
        spawning = [
            asyncio.ensure_future(
                host.spawn(target, options(rank), own_process=own_process, pool=pool)
            )
            for rank, pool in enumerate(pools)
        ]
        try:
            handles = await asyncio.gather(*spawning)
        except BaseException:
            for task in spawning:
                task.cancel()
            made = await asyncio.gather(*spawning, return_exceptions=True)
            spawned = [each for each in made if not isinstance(each, BaseException)]
            await asyncio.gather(*(each.close() for each in spawned), return_exceptions=True)
            raise
        members = [
            WorkerRef(handle=handle, pool=pool) for handle, pool in zip(handles, pools, strict=True)
        ]
        return cls(members=members, invoke=invoke)

    def add(self, handle: Handle, *, pool: str = "") -> WorkerRef:
        """Let a worker join."""
        member = WorkerRef(handle=handle, pool=pool)
        self.members.append(member)
        return member

    def remove(self, member: WorkerRef) -> None:
        """Let a worker leave; the caller ends it."""
        self.members.remove(member)

    def call(
        self, method: "Registered[W, P, T, C]", *args: P.args, **kwargs: P.kwargs
    ) -> "Awaitable[C]":
        """Start a call as its method says; arguments by position."""
        return self.call_tagged("", method, *args, **kwargs)

    def call_tagged(
        self, tag: str, method: "Registered[W, P, T, C]", *args: P.args, **kwargs: P.kwargs
    ) -> "Awaitable[C]":
        """Start a call of a task domain, which may prefer a pool."""
        _check_positional(method, kwargs)
        if method.function is not None:
            if self.invoke is None:
                fix = "give WorkerGroup.open an invoke, such as HttpMethods()"
                raise UserError(f"{method.name} is a function at {method.function.url}: {fix}")
            work = self.invoke(method.function, method.name, cast("Sequence[Json]", args))
            return self._start(cast("Awaitable[C]", work))
        if method.is_single:
            pool = method.affinity.get(tag, method.affinity.get("default", ""))
            member = self._choose(method.name, pool)
            return self._start(cast("Awaitable[C]", _call(member, method.name, args)))
        return self._start(_collected(method, self.spread(method, *args, **kwargs)))

    def spread(
        self, method: "Registered[W, P, T, C]", *args: P.args, **kwargs: P.kwargs
    ) -> "list[asyncio.Future[T]]":
        """Start a call and return the answer of each worker called, in order.

        For callers that must know which worker failed, or cannot wait for the others.
        """
        _check_positional(method, kwargs)
        divided = method.sharing.divide(len(self.members), args)
        if len(divided) != len(self.members):
            wrong = f"{len(divided)} shares for {len(self.members)} workers"
            raise InvariantError(f"{method.name}: {wrong}")
        return [
            self._start(cast("Awaitable[T]", _call(member, method.name, share)))
            for member, share in zip(self.members, divided, strict=True)
            if share is not None
        ]

    async def close(self) -> None:
        """End every worker; raise the first error, after all have ended."""
        members, self.members = self.members, []
        closing = (member.handle.close() for member in members)
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if result is not None:
                raise result

    def _start(self, work: "Awaitable[C]") -> "asyncio.Future[C]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller got it, unless it has stopped waiting

    def _choose(self, method: str, pool: str) -> WorkerRef:
        alive = [member for member in self.members if not member.is_dead]
        if not alive:
            raise UserError(f"{method}: no worker is alive; {len(self.members)} have died")
        preferred = [member for member in alive if member.pool == pool]
        return min(preferred or alive, key=lambda member: member.in_flight)


async def _collected(
    method: "Registered[Any, Any, T, C]", answers: "Sequence[asyncio.Future[T]]"
) -> C:
    """Put the workers' answers together; raise the first error once all have answered."""
    results = await asyncio.gather(*answers, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return method.sharing.collect(cast("list[T]", results))


def _check_positional(
    method: "Registered[Any, Any, Any, Any]", kwargs: Mapping[str, object]
) -> None:
    if kwargs:
        raise UserError(f"{method.name}: give the arguments of a group's call by position")


def _call(member: WorkerRef, name: str, args: Arguments) -> Awaitable[Any]:
    """Call a member, which counts as busy from now on."""
    member.in_flight += 1

    async def call() -> Any:
        try:
            return await member.handle.call(name, *args)
        except Exception as error:
            member.is_dead |= isinstance(error, ActorDiedError)
            raise
        finally:
            member.in_flight -= 1

    return call()
