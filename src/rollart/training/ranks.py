"""Ranks: several trainers behind one handle.

    call("step", batch) ─┬─► rank 0 ─► its report is the answer
                         ├─► rank 1       all ranks get every call, in the same order, one at a time
                         └─► rank 2 …

Ranks wait for each other inside a call, so a call once begun is heard by all of them, whatever
becomes of whoever made it. If one fails, the others get a little time to say the same: a mistake
they all made alike (a bad batch, a full disk) leaves the group as it was. Anything else, above all
a rank that died, breaks it: all ranks are ended, every later call repeats the reason, and
`restart` makes the group anew from a checkpoint.

Knows only hosts and handles: where ranks run is the host's affair.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart.errors import InvariantError, RollartError, UserError
from rollart.ports import Handle, Host
from rollart.types import Json, Version

TRAINER = "rollart.training.trainer:TorchTrainer"
GRACE_S = 5.0
"""How long the other ranks may still answer when one has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What a group of ranks is made of."""

    options: Mapping[str, Json]
    """What every rank is made with, besides its place."""
    ranks: int
    target: str = TRAINER
    rendezvous: Callable[[], str] | None = None
    """Names a place never used before where ranks of several machines meet; None: on this one."""
    grace_s: float = GRACE_S


class RankGroup:
    """A trainer of several ranks, as a handle."""

    def __init__(self, host: Host, plan: RankPlan) -> None:
        self._host = host
        self._plan = plan
        self._handles: list[Handle] = []
        self._failure: BaseException | None = None
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._meeting: Path | None = None

    @classmethod
    async def start(cls, host: Host, plan: RankPlan) -> "RankGroup":
        """Make all ranks; returns when they have met."""
        group = cls(host, plan)
        await group._make()
        return group

    async def call(self, method: str, *args: object) -> Any:
        """Run a method on every rank and return the first one's result."""
        return await self._in_turn(lambda: self._fan_out(method, args))

    async def restart(self, directory: str) -> Version:
        """End what is left of the ranks, make them anew and load a checkpoint."""

        async def renew() -> Version:
            await self._end()
            await self._make()
            return await self._fan_out("load", (directory,))

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
            task.exception()  # whoever made the call was told, or is gone

    async def _make(self) -> None:
        """Spawn all ranks at once: each waits for the others to come."""
        plan, rendezvous = self._plan, self._rendezvous()
        spawning = [
            asyncio.create_task(
                self._host.spawn(
                    plan.target,
                    {
                        **plan.options,
                        "rank": rank,
                        "world_size": plan.ranks,
                        "rendezvous": rendezvous,
                    },
                    own_process=True,
                )
            )
            for rank in range(plan.ranks)
        ]
        try:
            self._handles = await self._all(spawning)
            self._failure = None
        except BaseException:
            for task in spawning:
                task.cancel()
            made = await asyncio.gather(*spawning, return_exceptions=True)
            self._handles = [each for each in made if not isinstance(each, BaseException)]
            await self._end()
            raise

    async def _fan_out(self, method: str, args: tuple[object, ...]) -> Any:
        if self._failure is not None:
            raise self._failure
        calls = [asyncio.create_task(handle.call(method, *args)) for handle in self._handles]
        try:
            return (await self._all(calls))[0]
        except BaseException as error:
            if not _is_shared(calls):
                self._failure = error
                await self._end()
                await asyncio.gather(*calls, return_exceptions=True)
            raise

    async def _all(self, tasks: Sequence["asyncio.Task[Any]"]) -> list[Any]:
        """Await all; on a failure, wait a little for the rest and raise the plainest reason."""
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            done, waiting = await asyncio.wait(tasks, timeout=self._plan.grace_s)
        errors = [error for task in tasks if task in done and (error := task.exception())]
        if errors:
            raise min(errors, key=_plainness)
        return [task.result() for task in tasks]

    async def _end(self) -> None:
        handles, self._handles = self._handles, []
        await asyncio.gather(*(handle.close() for handle in handles), return_exceptions=True)
        if self._meeting is not None:
            await asyncio.to_thread(shutil.rmtree, self._meeting, ignore_errors=True)
            self._meeting = None

    def _rendezvous(self) -> str:
        if self._plan.rendezvous is not None:
            return self._plan.rendezvous()
        self._meeting = Path(tempfile.mkdtemp(prefix="rollart-ranks-"))
        return f"file://{self._meeting / 'meeting'}"


def _plainness(error: BaseException) -> int:
    """Order errors by how well they name the cause: a dead rank's before its peers' complaints."""
    if isinstance(error, UserError):
        return 0
    return 1 if isinstance(error, InvariantError) else 2


def _is_shared(calls: Sequence["asyncio.Task[Any]"]) -> bool:
    """Say whether every rank refused the call by itself and for the same reason."""
    errors = [call.exception() if call.done() and not call.cancelled() else None for call in calls]
    kinds = {(type(error), str(error)) for error in errors}
    return len(kinds) == 1 and isinstance(errors[0], RollartError) and _plainness(errors[0]) < 2
