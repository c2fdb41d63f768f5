"""TrainerClient: the trainer in another process, behind the typed port `RemoteTrainer`.

The names of an actor's methods are strings only in this package: a caller writes
`await trainer.step(batch)`, and the type checker sees the batch and the report.
"""

from collections.abc import Mapping

from rollart.ports import Array, Handle
from rollart.types import StepReport, Version


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
