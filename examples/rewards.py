"""Reward functions of your own: name one as `examples/rewards.py:short_and_right`.

Shipped functions that score code want a sandbox in the process that runs them: set
ROLLART_REWARD_SETUP=examples/rewards.py:offer_sandbox
"""

from rollart.errors import ScoreError
from rollart.rewards.context import use_sandbox
from rollart.sandbox.opening import open_sandbox
from rollart.sandbox.options import SandboxOptions
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


def offer_sandbox() -> None:
    """Say how a sandbox is opened here; it is, when the first program is to be run."""
    use_sandbox(lambda: open_sandbox(SandboxOptions(kind="bubblewrap", warm=1)))
