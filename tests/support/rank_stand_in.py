"""A rank without a model, for what a group does when ranks fail."""

import os
import signal
import time
from pathlib import Path

from rollart.cluster.worker_group import Worker, register
from rollart.errors import ConfigError, InvariantError

FOR_EVER_S = 600


class StandIn(Worker):
    """Waits, as a rank does that others keep waiting, unless it is the one that fails."""

    def __init__(
        self, *, rank: int, world_size: int, address: str, failing: int = -1, failed: str = ""
    ) -> None:
        self._rank = rank
        self._failed = Path(failed)
        self._place = [rank, world_size, address]
        self._heard: list[str] = []
        if failing == rank:
            raise ConfigError("model", rank, "is not there")
        if failing >= 0:
            time.sleep(FOR_EVER_S)

    @register("rank_zero")
    def meeting(self) -> str:
        return f"where rank {self._rank} is"

    @register("together")
    def join(self, rendezvous: str) -> None:
        self._place.append(rendezvous)

    @register("all")
    def place(self) -> list[int | str]:
        return self._place

    @register("together")
    def hear(self, word: str, delay_s: float) -> list[str]:
        time.sleep(delay_s * self._rank)
        self._heard.append(word)
        return self._heard

    @register("together")
    def refuse(self) -> None:
        raise InvariantError("a bad batch")

    @register("together")
    def refuse_alone(self, rank: int) -> None:
        if rank == self._rank:
            raise InvariantError(f"rank {rank} alone")
        time.sleep(FOR_EVER_S)

    @register("together")
    def step(self, batch: str) -> str:
        """Fail alone, the first time any rank of these is asked."""
        if self._rank == 1 and not self._failed.exists():
            self._failed.touch()
            raise InvariantError("connection reset by peer")
        return batch

    @register("together")
    def die(self, rank: int) -> None:
        if rank == self._rank:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("connection closed by peer")

    @register("together")
    def load(self, directory: str) -> int:
        return int(directory)

    def unregistered(self) -> None: ...
