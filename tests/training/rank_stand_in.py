"""A rank without a model, for what a group does when ranks fail."""

import os
import signal
import time

from rollart.errors import ConfigError, InvariantError

FOR_EVER_S = 60


class StandIn:
    """Waits, as a rank does that others keep waiting, unless it is the one that fails."""

    def __init__(self, *, rank: int, world_size: int, rendezvous: str, failing: int = -1) -> None:
        self._rank = rank
        self._place = (rank, world_size, rendezvous)
        self._heard: list[str] = []
        if failing == rank:
            raise ConfigError("model", rank, "is not there")
        if failing >= 0:
            time.sleep(FOR_EVER_S)

    def place(self) -> tuple[int, int, str]:
        return self._place

    def hear(self, word: str, delay_s: float) -> list[str]:
        time.sleep(delay_s * self._rank)
        self._heard.append(word)
        return self._heard

    def refuse(self) -> None:
        raise InvariantError("a bad batch")

    def refuse_alone(self, rank: int) -> None:
        if rank == self._rank:
            raise InvariantError(f"rank {rank} alone")
        time.sleep(FOR_EVER_S)

    def die(self, rank: int) -> None:
        if rank == self._rank:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("connection closed by peer")

    def load(self, directory: str) -> int:
        return int(directory)
