"""The programming model: a `Cluster` of like workers, called together.

    cluster = await Cluster.open(host, Counter, pools=["", "", "", ""])
    lengths = await cluster.call(Counter.count, words)      # each worker counted a quarter

Workers are made by any `Host`: in this process, in others or on a machine far away. What one call
on the cluster becomes is written on the worker's method (`sharing`). Calls start at once and return
awaitables. Workers may join and leave; a call is shared among those there when it starts. One whose
process is gone fails the call that finds out, and every later one that is not any worker's to take.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, cast

from rollart.errors import InvariantError, UserError
from rollart.ports import Handle, Host
from rollart.sharing import (
    Arguments,
    Function,
    Registered,
    Sharing,
    Worker,
    hw_mapping,
    register,
    serverless,
)
from rollart.types import Json

__all__ = [
    "Cluster",
    "Function",
    "Invoke",
    "Member",
    "Registered",
    "Sharing",
    "Worker",
    "hw_mapping",
    "register",
    "serverless",
]

W = TypeVar("W")
P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

Invoke: TypeAlias = "Callable[[Function, str, Sequence[Json]], Awaitable[Json]]"
"""Calls a function by its method's name and arguments; `HttpMethods` is one, over HTTP."""
_GONE = "ActorDiedError"
"""What hosts, which are above this layer, raise for an actor that is gone."""


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One worker of a cluster and where it is."""

    handle: Handle
    pool: str = ""
    in_flight: int = 0
    is_gone: bool = False
    """Whether a call found its process gone: no further call that any worker can take is its."""


@dataclass(slots=True, kw_only=True, eq=False)
class Cluster(Generic[W]):
    """Like workers, called together."""

    members: list[Member]
    invoke: "Invoke | None" = None
    """What reaches functions."""
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
    ) -> "Cluster[W]":
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
            Member(handle=handle, pool=pool) for handle, pool in zip(handles, pools, strict=True)
        ]
        return cls(members=members, invoke=invoke)

    def add(self, handle: Handle, *, pool: str = "") -> Member:
        """Let a worker join."""
        member = Member(handle=handle, pool=pool)
        self.members.append(member)
        return member

    def remove(self, member: Member) -> None:
        """Let a worker leave; whoever removes it ends it."""
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
                fix = "give Cluster.open an invoke, such as HttpMethods()"
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

        For those who must know which worker failed, or cannot wait for the others.
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
        """End every worker; raise the first error met, after all have ended."""
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
            task.exception()  # whoever made the call was told, or is gone

    def _choose(self, method: str, pool: str) -> Member:
        alive = [member for member in self.members if not member.is_gone]
        if not alive:
            raise UserError(f"{method}: no worker is left; {len(self.members)} are gone")
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
        raise UserError(f"{method.name}: give arguments of a cluster's call by position")


def _call(member: Member, name: str, args: Arguments) -> Awaitable[Any]:
    """Call a member, which counts as busy from now on."""
    member.in_flight += 1

    async def call() -> Any:
        try:
            return await member.handle.call(name, *args)
        except Exception as error:
            member.is_gone |= type(error).__name__ == _GONE
            raise
        finally:
            member.in_flight -= 1

    return call()
