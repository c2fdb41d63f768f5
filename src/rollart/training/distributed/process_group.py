"""The world of a trainer: its rank, and what it adds up with the others.

A collective is entered by every rank or by none: what decides whether one is entered is computed
from what all ranks know (the batch, the options) or was itself exchanged. A rank that dies breaks
the others' connections, and one that hangs exceeds their time limit: either way they raise.

gloo between CPUs; on CUDA, NCCL between devices and gloo for what is in host memory. Where ranks
meet is `meeting`'s. A world of one enters no collective.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from rollart.errors import ConfigError, UserError
from rollart.training.distributed.rendezvous import LOOPBACK

_LONGEST_BYTES = 2048
"""Longest part of a message that is sent to the other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """A rank among others; plain values, so a host can hand it over."""

    rank: int = 0
    world_size: int = 1
    address: str = LOOPBACK
    """Where the other ranks reach this one's machine."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError("rank", self.rank, f"must be in [0, {self.world_size})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """The ranks that train together, as one of them sees them."""

    rank: int = 0
    size: int = 1
    mesh: Any = None
    """The device mesh weights are sharded over; None where they are not."""

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for all."""
        return self.rank == 0

    def total(self, values: Sequence[float]) -> list[float]:
        """Add values up over all ranks, in double precision."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the largest of each value over all ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def first_words(self, words: str) -> str:
        """Return what the first rank said that said anything: all ranks then know of a failure."""
        if self.size == 1:
            return words
        spoken = torch.zeros(self.size, _LONGEST_BYTES, dtype=torch.uint8)
        said = list(words.encode()[:_LONGEST_BYTES])
        spoken[self.rank, : len(said)] = torch.tensor(said, dtype=torch.uint8)
        dist.all_reduce(spoken)
        heard = (bytes(row.tolist()).rstrip(b"\0") for row in spoken)
        return next((text.decode(errors="ignore") for text in heard if text), "")

    def leave(self) -> None:
        """End what joining began."""
        if self.mesh is not None and dist.is_initialized():
            dist.destroy_process_group()

    def _reduced(self, values: Sequence[float], kind: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=kind)
        return tensor.tolist()


@contextmanager
def told_to_all(world: ProcessGroup, kind: type[UserError]) -> Generator[None]:
    """Raise an error of this kind on every rank if the block raises it on any: the first one's."""
    failure: UserError | None = None
    try:
        yield
    except kind as error:
        failure = error
    words = world.first_words(str(failure or ""))
    if words:
        raise failure if failure is not None and str(failure) == words else kind(words)


def join(place: RankInfo, store: Any, *, device: str, timeout_s: float) -> ProcessGroup:
    """Meet the other ranks at a store they all reach; returns when all are there."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.set_device(place.rank % torch.cuda.device_count())
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    mesh = init_device_mesh(kind, (place.world_size,))
    return ProcessGroup(rank=place.rank, size=place.world_size, mesh=mesh)
