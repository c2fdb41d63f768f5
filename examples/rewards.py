"""Reward functions of your own, and two small environments whose attempts functions score.

Name a function as `rewards:short_and_right` in a config next to this file, or anywhere as
`examples/rewards.py:short_and_right`. See math_rewards.toml and code_rewards.toml.

Functions that score code want a sandbox in the process that runs them. `rollart train` gives
one to its own processes; where a function is served elsewhere, set there
ROLLART_REWARD_SETUP=examples/rewards.py:offer_sandbox
"""

from collections.abc import Mapping
from random import Random

from rollart.errors import ScoreError
from rollart.rewards.context import use_sandbox
from rollart.sandbox import open_sandbox
from rollart.sandbox.options import SandboxOptions
from rollart.types import Json, Reward, Trajectory


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
    fewest = min(each.cost for each in trajectories)
    return [float(each.cost == fewest) for each in trajectories]


def offer_sandbox() -> None:
    """Say how a sandbox is opened here; it is, when the first program is to be run."""
    use_sandbox(lambda: open_sandbox(SandboxOptions(kind="bubblewrap", warm=1)))


class _OneAnswer:
    """Poses one question; the answer is scored elsewhere, by what `payload` says of the task."""

    inline = True
    answer = ""
    choices: tuple[str, ...] = ()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        """End the episode, unpaid; what is said of success is for evaluations."""
        return "", 0.0, True, False, {"success": action.strip() == self.answer}

    def suggest(self) -> str:
        """Return the answer the warm start is shown, in between random ones."""
        return self.answer

    def _info(self, payload: dict[str, Json]) -> dict[str, Json]:
        return {"payload": payload, "actions": list(self.choices)}


class Sums(_OneAnswer):
    """Adds two digits."""

    system_prompt = "Add"
    choices = tuple(str(number) for number in range(19))

    def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Pose a sum."""
        random = Random(seed)
        left, right = random.randint(0, 9), random.randint(0, 9)
        self.answer = str(left + right)
        return f"{left}+{right}", self._info({"answer": self.answer})


_WORDS = {"+": "add", "-": "subtract", "*": "times"}


class Functions(_OneAnswer):
    """Asks for a program of one line: a function that does something to a number."""

    system_prompt = "Write f"
    choices = tuple(f"f=lambda x:x{sign}{number}" for sign in _WORDS for number in range(2, 10))

    def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Pose a function, with the tests it must pass."""
        self.answer = Random(seed).choice(self.choices)
        sign, number = self.answer[-2], int(self.answer[-1])
        sums = {"+": lambda x: x + number, "-": lambda x: x - number, "*": lambda x: x * number}
        tests: list[Json] = [f"assert f({x}) == {sums[sign](x)}" for x in (0, 1, 7)]
        return f"{_WORDS[sign]} {number}", self._info({"tests": tests})
