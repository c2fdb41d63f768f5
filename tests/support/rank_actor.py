"""A rank for tests: makes one trainer after another, so that processes are started once."""

from typing import Any

from training_samples import trainer_values

from rollart.cluster.worker_group import Worker, register
from rollart.training.trainer import TorchTrainer
from rollart.types import StepReport, Version
from rollart.weights.store import MemoryStore


class RankActor(Worker):
    """Passes calls on to the trainer made last."""

    def __init__(
        self, *, rank: int, world_size: int, address: str, first: list[Any] | None = None
    ) -> None:
        self._place: dict[str, Any] = {"rank": rank, "world_size": world_size, "address": address}
        self._store = MemoryStore()
        self._trainer: TorchTrainer | None = None
        if first is not None:
            self.make(*first)

    @register("all")
    def make(self, model: str, options: dict[str, Any]) -> None:
        """Make a trainer in place of the last."""
        self.close()
        self._store = MemoryStore()
        options = {"timeout_s": 20.0, **options, "ranks": self._place["world_size"]}
        values = trainer_values(options)
        self._trainer = TorchTrainer(model=model, **values, store=self._store, **self._place)

    @register("rank_zero")
    def meeting(self) -> str:
        return self.trainer.meeting()

    @register("together")
    def join(self, rendezvous: str) -> None:
        self.trainer.join(rendezvous)

    @register("together")
    def step(self, batch: dict[str, Any]) -> StepReport:
        return self.trainer.step(batch)

    @register("together")
    def weights(self) -> dict[str, Any]:
        version = self.trainer.publish()
        return dict(self._store.fetch(version)) if self._place["rank"] == 0 else {}

    @register("together")
    def adapter(self) -> dict[str, Any]:
        return self.trainer.adapter()

    @register("together")
    def save(self, directory: str) -> None:
        self.trainer.save(directory)

    @register("together")
    def load(self, directory: str) -> Version:
        return self.trainer.load(directory)

    @register("together")
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
