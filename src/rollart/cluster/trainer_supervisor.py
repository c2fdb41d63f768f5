"""TrainerSupervisor: a trainer that survives the death of its processes; behind `RemoteTrainer`.

    step(batch) ─► journal ─► trainer ─ dies ─► make another, load the last save, repeat the journal

Every batch since the last save is kept, so a new trainer reaches the state of the lost one: the
same versions from the same batches. The caller notices only the time it took. The trainer saves
for itself every few steps, because the run's checkpoints may be pruned, and a published version is
published again, because its store may have been lost too.

To move, a successor is made while the trainer works and takes over between two calls. Where there
is no room for both, the trainer saves and ends before another is made (`restart`).

An actor's methods are called by name; `TrainerClient` keeps those names here, so that callers
write `await trainer.step(batch)` and the type checker sees the batch and the report.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rollart.cluster.supervisor import (
    Place,
    RestartPolicy,
    Role,
    Supervisor,
    close_quietly,
    do_nothing,
)
from rollart.errors import (
    ActorDiedError,
    ActorError,
    GroupError,
    PlacementError,
    StorageError,
    UserError,
)
from rollart.ports import Array, Handle
from rollart.training_ports import RemoteTrainer
from rollart.types import StepReport, Version

_DEATHS_IN_A_ROW = 5
RESTARTS = RestartPolicy(
    retried=(PlacementError, ActorError, GroupError),  # no room now, or a rank died early
    patience_s=300.0,
)
"""How long a trainer whose machine is lost waits for another before the run is given up."""


class TrainerSupervisor:
    """A `RemoteTrainer` that is made again when it is lost."""

    def __init__(
        self,
        spawn: Callable[[], Awaitable[RemoteTrainer]],
        *,
        directory: Path,
        save_every: int,
        warn: Callable[[str], None],
        restarts: RestartPolicy = RESTARTS,
    ) -> None:
        """Take what makes a trainer at its first version, and where its own saves go."""
        self._spawn = spawn
        self._directory = directory
        self._save_every = save_every
        self._warn = warn
        role = Role(
            make=self._make,
            end=close_quietly,
            retire=_retire,
            take_over=self._take_over,
            warn=warn,
            restarts=restarts,
        )
        self._place = Place[RemoteTrainer](name="trainer", title="the trainer")
        self._supervisor = Supervisor(role, places=[self._place])
        self._base: str | None = None
        """What to load before the journal is repeated; None: a new trainer starts there."""
        self._journal: list[Mapping[str, Array]] = []
        """The batches since the last save."""
        self._is_published = False
        """Whether the trainer's version was published."""
        self._saves = 0
        self.deaths = 0

    async def start(self) -> None:
        """Make the trainer."""
        await self._supervisor.start()

    @property
    def trainer(self) -> RemoteTrainer | None:
        """The trainer that works now; None while another is being made."""
        return self._place.actor

    async def step(self, batch: Mapping[str, Array]) -> StepReport:
        """Make one optimizer step on a batch."""
        async with self._place.turn:
            self._journal.append(batch)
            self._is_published = False
            report = await self._do(lambda trainer: trainer.step(batch), is_in_journal=True)
            if len(self._journal) >= self._save_every:
                await self._save()
            return report

    async def publish(self) -> Version:
        """Put the current weights into the weight store; return their version."""
        async with self._place.turn:
            version = await self._do(lambda trainer: trainer.publish())
            self._is_published = True
            return version

    async def save(self, directory: str) -> None:
        """Write a checkpoint of the run."""
        async with self._place.turn:
            await self._do(lambda trainer: trainer.save(directory))

    async def load(self, directory: str) -> Version:
        """Restore what `save` wrote; return the version."""
        async with self._place.turn:
            self._base = directory
            self._journal.clear()
            self._is_published = False
            version = await self._do(self._catch_up, is_in_journal=True)
            await self._save()  # the checkpoint that was loaded may be pruned later
            return version

    async def remake(self) -> None:
        """Make the trainer again now, because the machine it was on is lost.

        A call that is under way notices by itself.
        """
        if not self._place.turn.locked():
            async with self._place.turn:
                lost, self._place.actor = self._place.actor, None
                await asyncio.gather(close_quietly(lost), self._do(do_nothing))

    async def move(self, spawn: Callable[[], Awaitable[RemoteTrainer]]) -> bool:
        """Continue in a trainer that is made elsewhere; say whether that succeeded.

        Where it cannot be made or brought up to date, the old one continues.
        """
        return await self._supervisor.move(self._place, spawn)

    async def restart(self) -> None:
        """Save, end the trainer and make it again where it fits best now."""
        async with self._place.turn:
            await self._save()
            old, self._place.actor = self._place.actor, None
            await close_quietly(old)
            await self._do(do_nothing)

    async def close(self) -> None:
        """End the trainer and remove its own saves."""
        await self._supervisor.close()
        if self._place.actor is not None:
            await self._place.actor.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _do(
        self, work: Callable[[RemoteTrainer], Awaitable[Any]], *, is_in_journal: bool = False
    ) -> Any:
        """Do some work with the trainer; if it dies meanwhile, do it again with another.

        `is_in_journal` says that a new trainer does the work as it catches up.
        """
        deaths = 0
        while True:
            trainer = self._place.actor
            try:
                if trainer is not None:
                    return await work(trainer)
                trainer = await self._supervisor.make_again(self._place)
                last = await self._catch_up_or_end(trainer)
                self._supervisor.install(self._place, trainer)
                if is_in_journal:
                    return last
            except (ActorDiedError, GroupError) as error:
                deaths += 1
                self.deaths += 1
                await close_quietly(trainer)  # one that is only out of reach would keep its place
                self._place.actor = None
                if deaths == _DEATHS_IN_A_ROW:
                    raise UserError(
                        f"the trainer died {deaths} times in a row; the last: {error}"
                    ) from error
                steps, why = len(self._journal), str(error).split("\n", 1)[0]
                self._warn(
                    f"the trainer is lost; starting another (steps to repeat: {steps}): {why}"
                )

    async def _make(self, _place: Place[RemoteTrainer], _name: str) -> RemoteTrainer:
        return await self._spawn()

    async def _take_over(self, successor: RemoteTrainer) -> None:
        await self._save()
        await self._catch_up(successor)

    async def _catch_up_or_end(self, trainer: RemoteTrainer) -> Any:
        try:
            return await self._catch_up(trainer)
        except BaseException:
            await close_quietly(trainer)
            raise

    async def _catch_up(self, trainer: RemoteTrainer) -> Any:
        """Bring a new trainer to where the last one was; return its last answer."""
        last: Any = None
        if self._base is not None:
            last = await trainer.load(self._base)
        for batch in self._journal:
            last = await trainer.step(batch)
        if self._is_published:
            await trainer.publish()
        return last

    async def _save(self) -> None:
        """Save into one of two directories in turn and start a new journal."""
        target = self._directory / str(self._saves % 2)
        shutil.rmtree(target, ignore_errors=True)
        try:
            await self._do(lambda trainer: trainer.save(str(target)))
        except StorageError as error:
            self._warn(f"the trainer cannot save for itself: {error}")
            return
        self._saves += 1
        self._base = str(target)
        self._journal.clear()


async def _retire(_place: Place[RemoteTrainer], trainer: RemoteTrainer) -> None:
    await close_quietly(trainer)


class TrainerClient:
    """Calls a trainer's methods through a handle: that of one actor, or of a group of ranks.

    Example:
        >>> trainer = TrainerClient(await RankGroup.start(host, plan))
        >>> (await trainer.step(batch)).version
        1
        >>> await trainer.publish()
        1

    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    async def step(self, batch: Mapping[str, Array]) -> StepReport:
        """Make one optimizer step on a batch."""
        return await self.handle.call("step", batch)

    async def publish(self) -> Version:
        """Put the current weights into the weight store; return their version."""
        return await self.handle.call("publish")

    async def save(self, directory: str) -> None:
        """Write a checkpoint."""
        await self.handle.call("save", directory)

    async def load(self, directory: str) -> Version:
        """Restore what `save` wrote; return the version."""
        return await self.handle.call("load", directory)

    async def close(self) -> None:
        """End the trainer."""
        await self.handle.close()
