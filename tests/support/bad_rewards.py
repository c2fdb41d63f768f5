"""Reward functions that behave and misbehave, run in processes and servers by the tests."""

import asyncio
import os
import sys
import time
from pathlib import Path

from rollart.types import Reward, Trajectory


def turns(trajectory: Trajectory) -> float:
    return float(len(trajectory.turns))


def parted(trajectory: Trajectory) -> Reward:
    return Reward(value=0.1 + 0.2, parts={"a": 0.1, "b": 0.2})


def ranks(trajectories: tuple[Trajectory, ...]) -> list[float]:
    return [float(rank) for rank, _ in enumerate(trajectories)]


async def slow(trajectory: Trajectory, *, seconds: float) -> float:
    await asyncio.sleep(seconds)
    return 1.0


def sleeps(trajectory: Trajectory, *, seconds: float) -> float:
    time.sleep(seconds)
    return 1.0


async def awaits(trajectory: Trajectory, *, door: str) -> float:
    """Return once a file is there."""
    while not Path(door).exists():
        await asyncio.sleep(0.002)
    return 1.0


def waits(trajectory: Trajectory, *, door: str) -> float:
    """Return once a file is there; block meanwhile."""
    while not Path(door).exists():
        time.sleep(0.002)
    return 1.0


def process(trajectory: Trajectory) -> float:
    return float(os.getpid())


def counted(trajectory: Trajectory, *, log: str, seconds: float = 0.0) -> float:
    """Write a line for every run."""
    with Path(log).open("a") as file:
        file.write(f"{trajectory.id}\n")
    time.sleep(seconds)
    return float(trajectory.id)


def raises(trajectory: Trajectory) -> float:
    raise RuntimeError("no grader here")


def not_a_number(trajectory: Trajectory) -> float:
    return float("nan")


def nothing(trajectory: Trajectory) -> None:
    return None


def a_string(trajectory: Trajectory) -> str:
    return "1.0"


def too_few(trajectories: tuple[Trajectory, ...]) -> list[float]:
    return [1.0] * (len(trajectories) - 1)


def never_returns(trajectory: Trajectory) -> float:
    while True:
        time.sleep(1)


def prints_a_gigabyte(trajectory: Trajectory) -> float:
    for _ in range(1024):
        sys.stdout.write("x" * 2**20)
    return 1.0


def writes_a_gigabyte(trajectory: Trajectory) -> float:
    """Past Python's streams, as a library or a child process would."""
    for _ in range(1024):
        os.write(1, b"x" * 2**20)
    return 1.0


def exits(trajectory: Trajectory) -> float:
    sys.exit(3)


def leaves(trajectory: Trajectory) -> float:
    os.write(2, b"last words\n")
    os._exit(7)


def eats_memory(trajectory: Trajectory) -> float:
    kept = []
    while True:
        kept.append(bytearray(10_000_000))


_left: list[asyncio.Task[None]] = []


async def leaves_work(trajectory: Trajectory) -> float:
    """Score whether what the first call left in the event loop has been done since."""

    async def work() -> None:
        for _ in range(2000):
            await asyncio.sleep(0)

    if not _left:
        _left.append(asyncio.create_task(work()))
    return float(_left[0].done())


async def interrupts(trajectory: Trajectory) -> float:
    raise KeyboardInterrupt
