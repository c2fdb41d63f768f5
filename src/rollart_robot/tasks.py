"""Robot tasks: their names, suites and difficulty classes, and the seeds of their resets.

Three suites. `toy` needs numpy alone. `metaworld` has the 50 tasks of Meta-World V3, named without
the version (`pick-place`; `pick-place-v3` means the same). `adroit` has four tasks of a 24-joint
hand, all with the prefix `adroit-`, because `hammer` is a task of Meta-World too.

A reset is determined by its seed. Seeds come in three ranges that cannot overlap, one for each
purpose, so a policy is never evaluated on a reset that it was trained on.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

import numpy as np

from rollart.errors import UserError

Suite = Literal["toy", "metaworld", "adroit"]
Difficulty = Literal["easy", "medium", "hard", "very hard"]
Purpose = Literal["demonstrations", "training", "evaluation"]

# The classes of Seo et al. (2023), which DP3, FlowPolicy, MP1 and OMP report by.
_EASY = (
    "button-press",
    "button-press-topdown",
    "button-press-topdown-wall",
    "button-press-wall",
    "coffee-button",
    "dial-turn",
    "door-close",
    "door-lock",
    "door-open",
    "door-unlock",
    "drawer-close",
    "drawer-open",
    "faucet-close",
    "faucet-open",
    "handle-press",
    "handle-press-side",
    "handle-pull",
    "handle-pull-side",
    "lever-pull",
    "peg-unplug-side",
    "plate-slide",
    "plate-slide-back",
    "plate-slide-back-side",
    "plate-slide-side",
    "reach",
    "reach-wall",
    "window-close",
    "window-open",
)
_MEDIUM = (
    "basketball",
    "bin-picking",
    "box-close",
    "coffee-pull",
    "coffee-push",
    "hammer",
    "peg-insert-side",
    "push-wall",
    "soccer",
    "sweep",
    "sweep-into",
)
_HARD = ("assembly", "hand-insert", "pick-out-of-hole", "pick-place", "push", "push-back")
_VERY_HARD = ("disassemble", "pick-place-wall", "shelf-place", "stick-pull", "stick-push")
_ADROIT = ("adroit-door", "adroit-hammer", "adroit-pen", "adroit-relocate")
_TOY = "toy-reach"
_SEEDS_OF_A_PURPOSE = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotTask:
    """A task that a robot can be trained on.

    Example:
        >>> find_task("pick-place-v3")
        RobotTask(name='pick-place', suite='metaworld', difficulty='hard')

    """

    name: str
    suite: Suite
    difficulty: Difficulty | None = None
    """The class of a Meta-World task; None for the others."""


def available_tasks() -> tuple[RobotTask, ...]:
    """Return all tasks; those of Meta-World by difficulty."""
    classes = dict(zip(get_args(Difficulty), (_EASY, _MEDIUM, _HARD, _VERY_HARD), strict=True))
    return (
        RobotTask(name=_TOY, suite="toy"),
        *(
            RobotTask(name=name, suite="metaworld", difficulty=difficulty)
            for difficulty, names in classes.items()
            for name in names
        ),
        *(RobotTask(name=name, suite="adroit") for name in _ADROIT),
    )


def find_task(name: str) -> RobotTask:
    """Return the task of this name; UserError with the nearest names if there is none."""
    plain = name.strip().lower().replace("_", "-").removesuffix("-v3")
    tasks = {task.name: task for task in available_tasks()}
    if plain in tasks:
        return tasks[plain]
    if f"adroit-{plain}" in tasks:
        near = [f"adroit-{plain}"]
    else:
        near = get_close_matches(plain, tasks, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "for example 'pick-place'"
    raise UserError(
        f"robot task {name!r} does not exist; {hint} There are {len(tasks)}: toy-reach, the 50 "
        "tasks of Meta-World V3, and adroit-door, adroit-hammer, adroit-pen, adroit-relocate"
    )


def reset_seeds(purpose: Purpose, *, seed: int, count: int, start: int = 0) -> tuple[int, ...]:
    """Return `count` different reset seeds of a purpose, from the `start`-th on.

    Example:
        >>> reset_seeds("evaluation", seed=0, count=2)
        (552892606, 552892607)

    """
    if seed < 0:
        raise UserError(f"seed = {seed}: must be at least 0")
    base = get_args(Purpose).index(purpose) * _SEEDS_OF_A_PURPOSE
    # Hashed, so that two seeds of a user do not give nearly the same resets.
    offset = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return tuple(
        base + (offset + index) % _SEEDS_OF_A_PURPOSE for index in range(start, start + count)
    )


def evaluation_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Return seeds of resets that no demonstration and no training episode begins with."""
    return reset_seeds("evaluation", seed=seed, count=count)
