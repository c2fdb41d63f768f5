"""The game every side plays, and the shape of a training step: the same numbers for all of them.

One environment class, one renderer and one set of first weights serve all sides, so they differ
only in how they roll out and train.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from transformers import AutoTokenizer

from rollart.envs.number_guess import NumberGuess
from rollart.inference.renderer import ChatRenderer

T = TypeVar("T")
GROUPS = 4
GROUP_SIZE = 8
TRAJECTORIES_PER_STEP = GROUPS * GROUP_SIZE
MAX_TURNS = 4
MAX_TOKENS = 4
"""Most tokens one turn may sample: a two-digit guess, its end, and one to spare."""
LEARNING_RATE = 3e-4
MAX_GRAD_NORM = 1.0
TASKS = 4096
"""How many tasks (seeds of the hidden number) there are."""
LEFT_OUT_STEPS = 3
"""First and last steps that do not count towards a rate; each at most a quarter of a measurement.

The first warm up. In the last, a side that works ahead only finishes what it began before them.
"""
SYSTEM = NumberGuess.system_prompt


def counted(steps: Sequence[T]) -> Sequence[T]:
    """Return the steps of a run that count towards a rate, the same for every side."""
    left_out = min(LEFT_OUT_STEPS, len(steps) // 4)
    return steps[left_out : len(steps) - left_out]


def make_env() -> NumberGuess:
    """Return a fresh game."""
    return NumberGuess(guesses=MAX_TURNS)


def make_renderer(checkpoint: Path) -> ChatRenderer:
    """Return the renderer of a checkpoint's chat template."""
    return ChatRenderer(AutoTokenizer.from_pretrained(checkpoint))
