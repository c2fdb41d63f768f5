"""The game every side plays, and the shape of a training step: the same numbers for all of them.

One environment class, one renderer and one set of first weights serve all sides, so they differ
only in how they roll out and train.
"""

from pathlib import Path

from transformers import AutoTokenizer

from rollart.envs.number_guess import NumberGuess
from rollart.models.renderer import ChatRenderer

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
WARM_UP_STEPS = 3
"""First steps that do not count towards a rate; at most a quarter of a measurement."""
SYSTEM = NumberGuess.system_prompt


def make_env() -> NumberGuess:
    """Return a fresh game."""
    return NumberGuess(guesses=MAX_TURNS)


def make_renderer(checkpoint: Path) -> ChatRenderer:
    """Return the renderer of a checkpoint's chat template."""
    return ChatRenderer(AutoTokenizer.from_pretrained(checkpoint))
