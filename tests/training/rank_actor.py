"""A rank for tests: makes one trainer after another, so that processes are started once."""

from pathlib import Path
from typing import Any

from rollart.training.trainer import TorchTrainer
from rollart.types import StepReport, Version
from rollart.weights.memory import MemoryStore


class RankActor:
    """Passes calls on to the trainer made last."""

    def __init__(
        self, *, rank: int, world_size: int, rendezvous: str, first: list[Any] | None = None
    ) -> None:
        self._rank, self._world_size = rank, world_size
        self._meetings = Path(rendezvous.removeprefix("file://")).parent
        self._made = 0
        self._store = MemoryStore()
        self._trainer: TorchTrainer | None = None
        if first is not None:
            self.make(*first)

    def make(self, model: str, options: dict[str, Any]) -> None:
        """Make a trainer in place of the last."""
        self.close()
        self._made += 1
        self._store = MemoryStore()
        self._trainer = TorchTrainer(
            model=model,
            options={"timeout_s": 20.0, **options, "ranks": self._world_size},
            store=self._store,
            rank=self._rank,
            world_size=self._world_size,
            rendezvous=f"file://{self._meetings / str(self._made)}",
        )

    def step(self, batch: dict[str, Any]) -> StepReport:
        return self.trainer.step(batch)

    def weights(self) -> dict[str, Any]:
        version = self.trainer.publish()
        return dict(self._store.fetch(version)) if self._rank == 0 else {}

    def adapter(self) -> dict[str, Any]:
        return self.trainer.adapter()

    def save(self, directory: str) -> None:
        self.trainer.save(directory)

    def load(self, directory: str) -> Version:
        return self.trainer.load(directory)

    def export(self, directory: str) -> None:
        self.trainer.export(directory)

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None

    @property
    def trainer(self) -> TorchTrainer:
        assert self._trainer is not None
        return self._trainer
