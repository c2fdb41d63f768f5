"""toy-reach: a point in the plane goes round an obstacle to a goal. Needs numpy alone.

The point starts at the bottom, the goal is at the top, and a disc lies between them. Both ways
round are equally good, and the expert takes either, so the demonstrations have two modes: a policy
that averages them runs into the disc and stays there. State: position, goal and centre of the
disc; action: the step to take, in units of `_STEP`.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rollart.errors import UserError
from rollart_robot.envs import Floats, Image, checked_action

_STEP = 0.08
_RADIUS = 0.35
"""Of the disc; the point itself has no size."""
_CLEARANCE = 0.2
"""How far the expert stays away from the disc."""
_REACH = 0.1
"""Distance from the goal that is a success."""
_MAX_STEPS = 60
_EXTENT = 1.3
"""The picture shows [-extent, extent] in both directions."""


class ToyReach:
    """The environment of toy-reach.

    Example:
        >>> ToyReach().reset(seed=3).astype(float).round(1).tolist()
        [-0.2, -1.0, 0.2, 1.0, -0.1, -0.0]

    """

    task = "toy-reach"
    state_size = 6
    robot_size = 2
    action_size = 2
    max_steps = _MAX_STEPS

    def __init__(self) -> None:
        self._position = np.zeros(2)
        self._goal = np.zeros(2)
        self._disc = np.zeros(2)
        self._steps = 0

    def reset(self, seed: int) -> Floats:
        """Draw start, goal and disc."""
        random = np.random.default_rng(seed)
        self._position = np.array([random.uniform(-0.3, 0.3), random.uniform(-1.05, -0.9)])
        self._goal = np.array([random.uniform(-0.3, 0.3), random.uniform(0.85, 1.05)])
        self._disc = np.array([random.uniform(-0.1, 0.1), random.uniform(-0.15, 0.15)])
        self._steps = 0
        return self._state()

    def step(self, action: npt.ArrayLike) -> tuple[Floats, float, bool, bool, Mapping[str, bool]]:
        """Move, unless the disc is in the way; the reward is the way gained towards the goal."""
        before = float(np.linalg.norm(self._goal - self._position))
        moved = self._position + _STEP * checked_action(action, self.action_size)
        if np.linalg.norm(moved - self._disc) > _RADIUS:
            self._position = np.clip(moved, -_EXTENT, _EXTENT)
        self._steps += 1
        after = float(np.linalg.norm(self._goal - self._position))
        success = after <= _REACH
        return (
            self._state(),
            before - after,
            False,
            self._steps >= self.max_steps,
            {"success": success},
        )

    def render(self, width: int = 320, height: int = 240) -> Image:
        """Draw disc, goal and point."""
        size = min(width, height)
        axis = np.linspace(-_EXTENT, _EXTENT, size)
        grid = np.stack(np.meshgrid(axis, -axis), axis=-1)
        square = np.full((size, size, 3), 245, dtype=np.uint8)
        for centre, radius, colour in (
            (self._disc, _RADIUS, (120, 120, 120)),
            (self._goal, _REACH, (60, 170, 90)),
            (self._position, 0.05, (200, 60, 50)),
        ):
            square[np.linalg.norm(grid - centre, axis=-1) <= radius] = colour
        picture = np.full((height, width, 3), 245, dtype=np.uint8)
        top, left = (height - size) // 2, (width - size) // 2
        picture[top : top + size, left : left + size] = square
        return picture

    def points(self, count: int = 512) -> Floats:
        """Refuse: a plane has no depth."""
        raise UserError(f"{self.task} has no point cloud of {count} points: use a MuJoCo task")

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def _state(self) -> Floats:
        return np.concatenate([self._position, self._goal, self._disc]).astype(np.float32)


class ToyExpert:
    """Walks round the disc, left or right by the toss of a coin, then straight to the goal.

    Example:
        >>> expert = ToyExpert()
        >>> expert.reset(seed=3)
        >>> expert.act(ToyReach().reset(seed=3)).shape
        (2,)

    """

    def __init__(self) -> None:
        self._side = 1.0

    def reset(self, seed: int) -> None:
        """Choose the side; the toss does not depend on where things are."""
        self._side = 1.0 if np.random.default_rng([seed, 1]).random() < 0.5 else -1.0

    def act(self, state: Floats) -> Floats:
        """Head for the goal, or for the side of the disc while the disc is in the way."""
        position, goal, disc = (state[i : i + 2].astype(np.float64) for i in (0, 2, 4))
        target = goal
        clear = _RADIUS + _CLEARANCE
        if _is_blocked(position, goal, disc):
            # Head for the tangent point, on the chosen side, of a circle larger than the disc; on
            # that circle, for a point a little farther round.
            away = position - disc
            distance = max(float(np.linalg.norm(away)), 1e-9)
            turn = self._side * max(float(np.arccos(min(1.0, clear / distance))), 0.3)
            cosine, sine = np.cos(turn), np.sin(turn)
            spin = np.array([[cosine, -sine], [sine, cosine]])
            target = disc + clear * spin @ (away / distance)
        step = (target - position) / _STEP
        return (step / max(1.0, float(np.linalg.norm(step)))).astype(np.float32)


def _is_blocked(
    start: npt.NDArray[np.float64],
    end: npt.NDArray[np.float64],
    disc: npt.NDArray[np.float64],
) -> bool:
    """Say whether the straight way passes the disc too closely."""
    way = end - start
    share = float(np.clip((disc - start) @ way / max(float(way @ way), 1e-9), 0.0, 1.0))
    return float(np.linalg.norm(start + share * way - disc)) < _RADIUS + _CLEARANCE / 2
