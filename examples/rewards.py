"""Reward functions of your own: name one as `examples/rewards.py:short_and_right`."""

from rollart.errors import ScoreError
from rollart.types import Reward, Trajectory


def short_and_right(trajectory: Trajectory, *, key: str = "answer", bonus: float = 0.1) -> Reward:
    """Pay for the right answer, and a little for saying nothing else."""
    if key not in trajectory.task.payload:
        raise ScoreError(f"the task has no {key}", is_final=True)  # never a score, never trained on
    answer = trajectory.turns[-1].action.strip()
    wanted = str(trajectory.task.payload[key])
    right, short = float(wanted in answer), float(answer == wanted)
    return Reward(value=right + bonus * short, parts={"right": right, "short": short})


def shortest_wins(trajectories: tuple[Trajectory, ...]) -> list[float]:
    """Compare the attempts at a task: the first parameter's name makes it a group's function."""
    fewest = min(each.sampled_tokens for each in trajectories)
    return [float(each.sampled_tokens == fewest) for each in trajectories]
