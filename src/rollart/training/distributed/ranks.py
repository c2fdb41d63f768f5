"""Ranks: a cluster of trainers behind one handle.

    call("step", batch) ─┬─► rank 0 ─► its report is the answer
                         ├─► rank 1       a method says who is called; all of them, most often,
                         └─► rank 2 …     in the same order, one call at a time

Ranks wait for each other inside a call, so a call once begun reaches all of them, even if its
caller is cancelled. If one fails, the others get a little time to say the same: a mistake
they all made alike (a bad batch, a full disk) leaves the group as it was. Anything else, above all
a rank that died, breaks it: all ranks are ended, this call and every later one raise a GroupError
with the reason, and `restart` makes a new group from a checkpoint.

Knows only hosts and clusters: where ranks run is the host's affair. One rank is a group too.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollart.cluster.worker_group import Registered, Worker, WorkerGroup, register
from rollart.errors import GroupError, InvariantError, RollartError, UserError
from rollart.plugins import TRAINER
from rollart.ports import Host
from rollart.training.distributed.rendezvous import LOOPBACK
from rollart.training_ports import RankTrainer
from rollart.types import Json, Version

GRACE_S = 5.0
"""How long the other ranks may still answer when one has failed."""


class Rank(Worker):
    """How a group calls each method of the ports; the bodies are those of `TorchTrainer`.

    Declared apart from it, so that a process that only calls ranks does not load PyTorch.
    """

    target = TRAINER
    meeting = register("rank_zero")(RankTrainer.meeting)
    join = register("together")(RankTrainer.join)
    step = register("together")(RankTrainer.step)
    publish = register("together")(RankTrainer.publish)
    adapter = register("together")(RankTrainer.adapter)
    save = register("together")(RankTrainer.save)
    load = register("together")(RankTrainer.load)
    export = register("together")(RankTrainer.export)


def rank_of(trainer: str) -> type[Rank]:
    """Return the rank whose methods a trainer, named as "module:Class", has.

    Example:
        >>> rank_of("walkers:WalkerTrainer").target
        'walkers:WalkerTrainer'

    """
    return Rank if trainer == Rank.target else type("Rank", (Rank,), {"target": trainer})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What a group of ranks is made of."""

    options: Mapping[str, Json]
    """What every rank is made with, besides its place."""
    addresses: Sequence[str] = (LOOPBACK,)
    """Where each rank's machine is reached by the others: one rank for each."""
    worker: type[Any] = Rank
    own_process: bool = True
    grace_s: float = GRACE_S


class RankGroup:
    """A trainer of one or more ranks, as a handle."""

    def __init__(self, host: Host, plan: RankPlan) -> None:
        self._host = host
        self._plan = plan
        self.cluster: WorkerGroup[Any] = WorkerGroup(members=[])
        self._failure: BaseException | None = None
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()

    @classmethod
    async def start(cls, host: Host, plan: RankPlan) -> "RankGroup":
        """Make all ranks; returns when they have met."""
        group = cls(host, plan)
        await group._make()
        return group

    async def call(self, method: str, *args: object) -> Any:
        """Run a method of the ranks as it was registered and return its result."""
        return await self._in_turn(lambda: self._share_out(self._find(method), args))

    async def restart(self, directory: str) -> Version:
        """End the ranks that are left, make new ones and load a checkpoint."""

        async def renew() -> Version:
            await self._end()
            await self._make()
            return await self._share_out(self._find("load"), (directory,))

        return await self._in_turn(renew)

    async def close(self) -> None:
        """End all ranks; a call under way fails."""
        self._failure = self._failure or InvariantError("the ranks were closed")
        await self._end()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _in_turn(self, work: Callable[[], Any]) -> Any:
        """Do one thing at a time, to its end even if nobody waits for it any more."""

        async def take_turn() -> Any:
            async with self._turn:
                return await work()

        task = asyncio.create_task(take_turn())
        self._calls.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has it already, or was cancelled

    async def _make(self) -> None:
        """Make all ranks, then let them meet on the first one's machine."""
        plan = self._plan
        ranks = len(plan.addresses)

        def options(rank: int) -> Mapping[str, Json]:
            place = {"rank": rank, "world_size": ranks, "address": plan.addresses[rank]}
            return {**plan.options, **place}

        try:
            self.cluster = await WorkerGroup.open(
                self._host,
                plan.worker,
                pools=[""] * ranks,
                options=options,
                own_process=plan.own_process,
            )
            self._failure = None
            if ranks > 1:
                rendezvous = await self._share_out(self._find("meeting"), ())
                await self._share_out(self._find("join"), (rendezvous,))
        except BaseException as error:
            self._failure = error
            await self._end()
            raise

    def _find(self, method: str) -> Registered[Any, Any, Any, Any]:
        found = getattr(self._plan.worker, method, None)
        if not isinstance(found, Registered):
            raise InvariantError(f"{self._plan.worker.__name__} registers no method {method!r}")
        return found  # pyright: ignore[reportUnknownVariableType]

    async def _share_out(
        self, method: Registered[Any, Any, Any, Any], args: tuple[object, ...]
    ) -> Any:
        if self._failure is not None:
            raise self._failure
        answers = self.cluster.spread(method, *args)
        try:
            return method.sharing.collect(await self._all(answers))
        except Exception as error:
            if len(self.cluster.members) < 2 or _is_shared(answers):
                raise
            self._failure = GroupError(f"a training rank failed and all were ended: {error}")
            await self._end()
            await asyncio.gather(*answers, return_exceptions=True)
            raise self._failure from error

    async def _all(self, answers: Sequence["asyncio.Future[Any]"]) -> list[Any]:
        """Await all; on a failure, wait a little for the rest and raise the plainest reason."""
        done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            done, waiting = await asyncio.wait(answers, timeout=self._plan.grace_s)
        errors = [error for each in answers if each in done and (error := each.exception())]
        if errors:
            raise min(errors, key=_plainness)
        return [each.result() for each in answers]

    async def _end(self) -> None:
        cluster, self.cluster = self.cluster, WorkerGroup(members=[])
        await asyncio.gather(cluster.close(), return_exceptions=True)


def _plainness(error: BaseException) -> int:
    """Order errors by how well they name the cause: a dead rank's before its peers' complaints."""
    if isinstance(error, UserError):
        return 0
    return 1 if isinstance(error, InvariantError) else 2


def _is_shared(answers: Sequence["asyncio.Future[Any]"]) -> bool:
    """Say whether every rank refused the call by itself and for the same reason."""
    errors = [
        each.exception() if each.done() and not each.cancelled() else None for each in answers
    ]
    kinds = {(type(error), str(error)) for error in errors}
    return len(kinds) == 1 and isinstance(errors[0], RollartError) and _plainness(errors[0]) < 2
