"""Reward functions for whole runs: some fail now and then, some compare."""

import time

from rollart.types import Reward, Trajectory


def by_id(trajectory: Trajectory) -> Reward:
    return Reward(value=float(trajectory.id % 3), parts={"third": float(trajectory.id % 3)})


def sometimes(trajectory: Trajectory) -> float:
    if trajectory.id % 4 == 1:
        raise RuntimeError("no grader here")
    return float(trajectory.id)


def sometimes_hangs(trajectory: Trajectory) -> float:
    if trajectory.id % 7 == 3:
        time.sleep(1000)
    return float(trajectory.id)


def ranks(trajectories: tuple[Trajectory, ...]) -> list[float]:
    assert len({each.group for each in trajectories}) == 1
    return [float(rank) for rank, _ in enumerate(trajectories)]
