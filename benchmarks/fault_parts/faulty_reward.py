"""A reward function that is disturbed when it is told to be, and notes every run it completes."""

import os
import signal
import time
from pathlib import Path

from rollart.types import Reward, Trajectory


def score(
    trajectory: Trajectory, *, directory: str, fault: str = "", is_lasting: bool = False
) -> Reward:
    """Grade a trajectory; with a `fault`, fail that way at the first run, or at every run."""
    if fault and (is_lasting or _is_first(Path(directory) / f"met-{trajectory.id}")):
        _suffer(fault)
    reward = _grade(trajectory)
    with (Path(directory) / "completed").open("a") as file:
        file.write(f"{trajectory.id}\n")
    return reward


def compare(trajectories: tuple[Trajectory, ...]) -> list[Reward]:
    """Grade a group: each against the mean."""
    grades = [_grade(each).value for each in trajectories]
    mean = sum(grades) / len(grades)
    return [Reward(value=grade - mean, parts={"grade": grade}) for grade in grades]


def _grade(trajectory: Trajectory) -> Reward:
    words = [word for turn in trajectory.turns for word in turn.action.split()]
    variety = len(set(words)) / max(1, len(words))
    length = sum(len(turn.tokens) for turn in trajectory.turns) / 7
    return Reward(value=variety - 0.1 * length, parts={"variety": variety, "length": length})


def _is_first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _suffer(fault: str) -> None:
    match fault:
        case "hang":
            time.sleep(3600)
        case "crash":
            os._exit(9)
        case "worker":
            os.kill(os.getppid(), signal.SIGKILL)  # on Ray: its worker, and this process with it
            time.sleep(3600)
        case "raise":
            raise RuntimeError("the grader's service is down")
        case "drop":
            os.closerange(3, 256)
            time.sleep(3600)
        case _:
            raise ValueError(f"no such fault: {fault}")
