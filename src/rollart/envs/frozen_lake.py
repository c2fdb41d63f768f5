"""FrozenLake: cross a frozen lake from the top left corner to the goal without falling in.

Owns the random lakes, always solvable because each is drawn until a safe path exists, and their
description. Squares are named as on a chess board: a letter for the column, growing to the right,
and a number for the row, growing downwards; the start is `a1`. The text is short on purpose: holes
and goal are given once, later turns give only the player's position. An illegal move uses up the
turn and returns a message; it never raises.

A task may name its `split`: lakes are divided by their holes and one in five is kept for "test", so
no lake of an evaluation occurs in training. The task's `index` chooses a test lake: an evaluation
uses different lakes as long as there are any, and every evaluation uses the same ones. Where there
are too few lakes to divide (without holes there is one), the info of `reset` says `split` "none".
"""

from collections import deque
from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Literal, get_args

from rollart.envs.registry import UNDIVIDED, draw_of_split, split_of
from rollart.errors import ConfigError, EnvError
from rollart.types import Json

Square = tuple[int, int]
"""Row and column, from 0."""
View = Literal["list", "map", "local"]

MOVES: dict[str, Square] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_SIDEWAYS = {
    "up": ("left", "right"),
    "down": ("left", "right"),
    "left": ("up", "down"),
    "right": ("up", "down"),
}
_SMALLEST, _LARGEST = 2, 9
_ATTEMPTS = 50
_HOLE_CHANCE = 0.3
"""Probability that a square is a hole if no number of holes is given."""
_PATIENCE = 2000
"""Draws in a row without a new test lake after which the search stops."""


class FrozenLake:
    """A lake with holes; the reward is 1 at the goal, 0 in a hole."""

    system_prompt = "Reach goal, avoid holes: up, down, left or right"
    inline = True

    def __init__(
        self,
        *,
        size: int = 4,
        holes: int | None = None,
        slippery: bool = False,
        view: str = "list",
    ) -> None:
        if view not in get_args(View):
            raise ConfigError("env.options.view", view, f"must be one of {get_args(View)}")
        if not isinstance(slippery, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError("env.options.slippery", slippery, "must be true or false")
        self._default = (_check_size(size), _check_holes(holes, size))
        self._size = size
        self._slippery = slippery
        self._view = view
        self._random = Random(0)
        self._holes: frozenset[Square] = frozenset()
        self._goal: Square = (size - 1, size - 1)
        self._player: Square = (0, 0)

    def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Draw a lake from the seed; `task` may set `size`, the number of `holes`, or a `split`."""
        self._random = Random(seed)
        self._size, holes = self._default
        if "size" in task or "holes" in task:
            self._size = _check_size(task.get("size", self._size))
            holes = _check_holes(task.get("holes"), self._size)
        self._player = (0, 0)
        self._goal = (self._size - 1, self._size - 1)
        self._holes = _choose_lake(self._random, self._size, holes, task)
        name = _names(self._holes)
        split = split_of(name) if can_divide(self._size, holes) else UNDIVIDED
        info: dict[str, Json] = {"problem": f"{self._size}: {name}", "split": split}
        return self._opening(), self._info(success=False) | info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        """Move the player; a slippery lake turns two moves of three sideways."""
        move = action.strip().lower()
        if move not in MOVES:
            return f"illegal\n{self._place()}", 0.0, False, False, self._info(success=False)
        if self._slippery:
            move = self._random.choice((move, *_SIDEWAYS[move]))
        target = _shift(self._player, move)
        if not _is_inside(target, self._size):
            return f"edge\n{self._place()}", 0.0, False, False, self._info(success=False)
        self._player = target
        if target in self._holes:
            return "fell in", 0.0, True, False, self._info(success=False)
        if target == self._goal:
            return "goal", 1.0, True, False, self._info(success=True)
        return self._place(), 0.0, False, False, self._info(success=False)

    def suggest(self) -> str:
        """Return the first move of a shortest safe path to the goal."""
        path = _shortest_path(self._player, self._goal, self._holes, self._size)
        if not path:
            raise EnvError("suggest() was called after the episode ended")
        return path[0]

    def drawing(self) -> str:
        """Return the lake as lines: `.` ice, `#` hole, `*` goal, `@` player."""
        signs = dict.fromkeys(self._holes, "#") | {self._goal: "*", self._player: "@"}
        squares = range(self._size)
        return "\n".join("".join(signs.get((r, c), ".") for c in squares) for r in squares)

    def _opening(self) -> str:
        match self._view:
            case "map":
                return f"{self.drawing()}\n{self._place()}"
            case "local":
                return f"goal {_name(self._goal)}\n{self._place()}"
            case _:
                holes = _names(self._holes) or "none"
                return f"holes {holes} goal {_name(self._goal)}\n{self._place()}"

    def _place(self) -> str:
        here = _name(self._player)
        if self._view != "local":
            return here
        near = [m for m in MOVES if _shift(self._player, m) in self._holes]
        return f"{here} holes {' '.join(near) or 'none'}"

    def _info(self, *, success: bool) -> dict[str, Json]:
        legal: list[Json] = [m for m in MOVES if _is_inside(_shift(self._player, m), self._size)]
        return {"actions": legal, "success": success}


def _check_size(size: Json) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or not _SMALLEST <= size <= _LARGEST:
        fix = f"must be a whole number from {_SMALLEST} to {_LARGEST}"
        raise ConfigError("env.options.size", size, fix)
    return size


def _check_holes(holes: Json, size: int) -> int | None:
    """Return the checked number of holes; None: each square is a hole by chance."""
    most = (size - 1) ** 2
    if holes is None:
        return None
    if not isinstance(holes, int) or isinstance(holes, bool) or not 0 <= holes <= most:
        fix = f"must be a whole number from 0 to {most} for size {size} (a path must remain)"
        raise ConfigError("env.options.holes", holes, fix)
    return holes


def _choose_lake(
    random: Random, size: int, count: int | None, task: Mapping[str, Json]
) -> frozenset[Square]:
    """Return the test lake with the task's index, or a random lake of its split."""
    split, index = task.get("split"), task.get("index")
    if split == "test" and isinstance(index, int):
        lakes = _test_lakes(size, count, 1 << index.bit_length())
        if lakes:
            return lakes[index % len(lakes)]
    return draw_of_split(
        lambda: _draw_holes(random, size, count), _names, split=split, redraws=_ATTEMPTS
    )


@cache
def can_divide(size: int, count: int | None) -> bool:
    """Say whether there are lakes of both splits."""
    random, found = Random(0), set[str]()
    for _ in range(_PATIENCE):
        found.add(split_of(_names(_draw_holes(random, size, count))))
        if len(found) > 1:
            return True
    return False


@cache
def _test_lakes(size: int, count: int | None, wanted: int) -> tuple[frozenset[Square], ...]:
    """Return the first distinct lakes of the test split; fewer than `wanted` if no more exist."""
    random = Random(0)
    lakes: dict[frozenset[Square], None] = {}
    misses = 0
    while len(lakes) < wanted and misses < _PATIENCE:
        lake = _draw_holes(random, size, count)
        is_new = split_of(_names(lake)) == "test" and lake not in lakes
        if is_new:
            lakes[lake] = None
        misses = 0 if is_new else misses + 1
    return tuple(lakes)


def _draw_holes(random: Random, size: int, count: int | None) -> frozenset[Square]:
    """Draw holes that leave a path; after `_ATTEMPTS` failures, keep a random path free."""
    start, goal = (0, 0), (size - 1, size - 1)
    squares = [(r, c) for r in range(size) for c in range(size)]
    free = [square for square in squares if square not in (start, goal)]
    for _ in range(_ATTEMPTS):
        holes = _draw(random, free, count)
        if _shortest_path(start, goal, holes, size):
            return holes
    walk = _random_walk(random, size)
    return _draw(random, [square for square in free if square not in walk], count)


def _draw(random: Random, squares: list[Square], count: int | None) -> frozenset[Square]:
    if count is None:
        return frozenset(square for square in squares if random.random() < _HOLE_CHANCE)
    return frozenset(random.sample(squares, count))


def _random_walk(random: Random, size: int) -> set[Square]:
    moves = ["down", "right"] * (size - 1)
    random.shuffle(moves)
    square: Square = (0, 0)
    visited: set[Square] = {square}
    for move in moves:
        square = _shift(square, move)
        visited.add(square)
    return visited


def _shortest_path(
    start: Square, goal: Square, holes: frozenset[Square], size: int
) -> tuple[str, ...]:
    """Return the moves of a shortest safe path, empty if there is none."""
    paths: dict[Square, tuple[str, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        square = queue.popleft()
        if square == goal:
            return paths[square]
        for move in MOVES:
            near = _shift(square, move)
            if near not in paths and near not in holes and _is_inside(near, size):
                paths[near] = (*paths[square], move)
                queue.append(near)
    return ()


def _shift(square: Square, move: str) -> Square:
    down, right = MOVES[move]
    return square[0] + down, square[1] + right


def _is_inside(square: Square, size: int) -> bool:
    return 0 <= square[0] < size and 0 <= square[1] < size


def _name(square: Square) -> str:
    return f"{'abcdefghi'[square[1]]}{square[0] + 1}"


def _names(holes: frozenset[Square]) -> str:
    return " ".join(_name(hole) for hole in sorted(holes))
