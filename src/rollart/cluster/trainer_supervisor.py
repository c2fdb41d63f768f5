"""LastingTrainer: a trainer that outlives the processes it runs in.

    step(batch) ─► journal ─► trainer ─ dies ─► make another, load the last save, repeat the journal

Every batch since the last save is kept, so a trainer that is gone is made again where it was: the
same versions from the same batches, and whoever called learns nothing of it but the time it took.
It saves for itself every few steps, beside the run's checkpoints, which are not its to count on.
What it had published it publishes again: the store may have been on the machine it was on.

It can move: a successor is made beside the trainer, which works meanwhile, and takes its state over
between two calls. Should the trainer die first, the successor is the one that is made again. Where
there is no room for both, the trainer saves and ends before another is made.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rollart.clock import SystemClock
from rollart.cluster.local_host import ActorDiedError, ActorError
from rollart.errors import GroupError, PlacementError, StorageError, UserError
from rollart.ports import Handle

_DEATHS_IN_A_ROW = 5
_FIRST_REST_S, _LONGEST_REST_S = 0.5, 5.0
_PATIENCE_S = 300.0
"""How long a trainer whose machine is gone waits for a place before the run gives up."""


class TrainerSupervisor:
    """A handle of a trainer that is made again when it is gone."""

    def __init__(
        self,
        spawn: Callable[[], Awaitable[Handle]],
        *,
        directory: Path,
        save_every: int,
        warn: Callable[[str], None],
    ) -> None:
        """Take what makes a trainer at its first version, and where its own saves go."""
        self._spawn = spawn
        self._directory = directory
        self._save_every = save_every
        self._warn = warn
        self._handle: Handle | None = None
        self._base: str | None = None
        """What to load before the journal is repeated; None: a new trainer is where it began."""
        self._journal: list[object] = []
        self._is_published = False
        """Whether the version it is at was published."""
        self._successor: asyncio.Future[Handle] | None = None
        """The trainer that is being made to move to."""
        self._turn = asyncio.Lock()
        self._saves = 0
        self.deaths = 0

    async def start(self) -> None:
        """Make the trainer."""
        self._handle = await self._spawn()

    async def call(self, method: str, *args: object) -> Any:
        """Run a method of the trainer, of whichever is there, and return its result."""
        async with self._turn:
            if method == "load":
                (self._base,) = map(str, args)
                self._journal.clear()
                self._is_published = False
                version = await self._lasting(_nothing, is_load=True)
                await self._save()  # what was loaded may be pruned like any other checkpoint
                return version
            if method == "step":
                self._journal.append(args[0])
                self._is_published = False
                report = await self._lasting(
                    lambda handle: handle.call("step", args[0]), is_step=True
                )
                if len(self._journal) >= self._save_every:
                    await self._save()
                return report
            result = await self._lasting(lambda handle: handle.call(method, *args))
            self._is_published |= method == "publish"
            return result

    async def remake(self) -> None:
        """Make the trainer again now: the machine it was on is gone.

        Where a call is under way, that notices by itself.
        """
        if not self._turn.locked():
            async with self._turn:
                lost, self._handle = self._handle, None
                await asyncio.gather(_end(lost), self._lasting(_nothing))

    async def move(self, spawn: Callable[[], Awaitable[Handle]]) -> bool:
        """Go on in a trainer that is made elsewhere; say whether it does.

        Raises what kept it from being made; then the old one goes on.
        """
        successor = self._successor = asyncio.ensure_future(spawn())
        try:
            await asyncio.wait({successor})
            async with self._turn:
                if self._take_successor() is not None:  # else the old one died meanwhile
                    await self._take_over(await successor)
                return not successor.exception() and self._handle is successor.result()
        finally:
            successor.cancel()

    async def restart(self) -> None:
        """Save, end the trainer and make it again where it now fits best."""
        async with self._turn:
            await self._save()
            old, self._handle = self._handle, None
            await _end(old)
            await self._lasting(_nothing)

    async def close(self) -> None:
        """End the trainer and forget its saves."""
        if self._handle is not None:
            await self._handle.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def handle(self) -> Handle | None:
        """The trainer that is there now."""
        return self._handle

    async def _lasting(
        self,
        work: Callable[[Handle], Awaitable[Any]],
        *,
        is_step: bool = False,
        is_load: bool = False,
    ) -> Any:
        """Do something with a trainer; one that dies of it is made again and does it again."""
        deaths = 0
        handle, is_made_again = self._handle, is_load
        while True:
            try:
                if handle is None:
                    handle, is_made_again = await self._make_again(), True
                if is_made_again:
                    last = await self._catch_up(handle)
                    if is_step or is_load:
                        self._handle = handle
                        return last
                self._handle = handle
                return await work(handle)
            except (ActorDiedError, GroupError) as error:
                deaths += 1
                self.deaths += 1
                await _end(handle)  # what seems gone but lives would keep its place
                self._handle = handle = None
                if deaths == _DEATHS_IN_A_ROW:
                    raise UserError(
                        f"the trainer died {deaths} times in a row; the last: {error}"
                    ) from error
                steps = len(self._journal)
                why = str(error).split("\n", 1)[0]
                self._warn(f"the trainer is gone; making it again ({steps} steps to repeat): {why}")

    async def _take_over(self, handle: Handle) -> None:
        """Bring a successor to where the trainer is and end that."""
        try:
            await self._save()
            await self._catch_up(handle)
        except BaseException:
            await _end(handle)
            raise
        old, self._handle = self._handle, handle
        await _end(old)

    async def _catch_up(self, handle: Handle) -> Any:
        """Bring a new trainer to where the last one was; return its last answer."""
        last: Any = None
        if self._base is not None:
            last = await handle.call("load", self._base)
        for batch in self._journal:
            last = await handle.call("step", batch)
        if self._is_published:
            await handle.call("publish")
        return last

    async def _make_again(self) -> Handle:
        """Make a trainer, trying for a while if there is no place or what there was is gone."""
        rest_s, clock, said = _FIRST_REST_S, SystemClock(), ""
        successor = self._take_successor()
        while True:
            try:
                if successor is None:
                    return await self._spawn()
                successor, made = None, successor
                return await made
            except (PlacementError, ActorError, GroupError) as error:  # or a rank died early
                if clock.now() >= _PATIENCE_S:
                    raise
                if said != (said := f"the trainer cannot be made now: {error}"):
                    self._warn(said)
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, _LONGEST_REST_S)

    def _take_successor(self) -> "asyncio.Future[Handle] | None":
        successor, self._successor = self._successor, None
        return successor

    async def _save(self) -> None:
        target = self._directory / str(self._saves % 2)
        shutil.rmtree(target, ignore_errors=True)
        try:
            await self._lasting(lambda handle: handle.call("save", str(target)))
        except StorageError as error:
            self._warn(f"the trainer cannot save for itself: {error}")
            return
        self._saves += 1
        self._base = str(target)
        self._journal.clear()


async def _end(handle: Handle | None) -> None:
    if handle is not None:
        with contextlib.suppress(Exception):
            await handle.close()


async def _nothing(_handle: Handle) -> None:
    return None
