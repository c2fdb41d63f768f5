"""The trainer's way home: its ranks move together to where they belong.

Where all of them fit at home beside those there are, successors are made while the trainer works.
Where they do not, as when some of the ranks are at home already, the trainer saves, ends, and is
made again from its save. Either way a place counts as taken until the rank in it has ended.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from rollart.build.ray_ranks import RANK, bind_ranks
from rollart.build.resources import Resources
from rollart.config import Config
from rollart.config.placing import trainer_place
from rollart.control.binding import Binding
from rollart.errors import PlacementError
from rollart.ports import Handle
from rollart.runtime.lasting_trainer import LastingTrainer

_SUCCESSOR = "next-trainer-"
"""What the names of ranks begin with that are not yet the trainer's."""


class TrainerMover:
    """Moves a trainer when there is a better place for it."""

    def __init__(
        self,
        config: Config,
        resources: Resources,
        trainer: LastingTrainer,
        *,
        spawn: Callable[[Sequence[Binding]], Awaitable[Handle]],
        warn: Callable[[str], None],
    ) -> None:
        """Take the trainer, and what makes one where its ranks are bound."""
        self._config = config
        self._resources = resources
        self._trainer = trainer
        self._spawn = spawn
        self._warn = warn

    @property
    def is_due(self) -> bool:
        """Whether a rank could now be where it belongs and is not."""
        ranks = self._resources.bindings(RANK)
        return any(self._resources.is_better(rank.worker) for rank in ranks)

    async def move(self) -> bool:
        """Move the trainer; say whether that could be."""
        self._warn("the trainer moves to where it belongs")
        successors = self._bind_successors()
        try:
            if not successors:
                await self._trainer.restart()
            elif await self._trainer.move(lambda: self._spawn(successors)):
                self._rename(successors)
        except Exception as error:
            self._warn(f"the trainer cannot move: {error}")
            return False
        finally:
            self._release(successors)
        return True

    def _bind_successors(self) -> list[Binding]:
        """Bind a successor of every rank at home, beside the ranks; none if they do not all fit."""
        try:
            successors = bind_ranks(self._config, self._resources, prefix=_SUCCESSOR)
        except PlacementError:
            successors = []
        if all(each.is_at_home for each in successors):
            return successors
        self._release(successors)
        return []

    def _rename(self, successors: Sequence[Binding]) -> None:
        """Let the successors hold their places as the ranks, whose own are free now."""
        for each in successors:
            worker = RANK + each.worker.removeprefix(_SUCCESSOR)
            self._resources.release(each.worker)
            self._resources.put_back([replace(each, worker=worker)], trainer_place(self._config))

    def _release(self, successors: Sequence[Binding]) -> None:
        for each in successors:
            self._resources.release(each.worker)
