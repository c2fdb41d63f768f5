"""The reward functions every invoker is tried with."""

from rollart.types import Reward, Trajectory

NAMES = ("graded", "numbered", "ranked", "raising", "not_finite", "wrong_kind")


def graded(trajectory: Trajectory, *, scale: float) -> Reward:
    words = [word for turn in trajectory.turns for word in turn.action.split()]
    return Reward(value=len(words) * scale / 3, parts={"words": len(words), "scale": scale})


def numbered(trajectory: Trajectory) -> float:
    return float(trajectory.id % 3)


async def ranked(trajectories: tuple[Trajectory, ...]) -> list[float]:
    lengths = [len(each.turns[0].action) for each in trajectories]
    return [length / max(lengths) for length in lengths]


def raising(trajectory: Trajectory) -> float:
    raise RuntimeError("no grader here")


def not_finite(trajectory: Trajectory) -> float:
    return float("nan")


def wrong_kind(trajectory: Trajectory) -> None:
    return None
