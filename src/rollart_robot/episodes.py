"""Episodes played by a policy, many environments of one process together.

A round asks the policy once for all running environments, then carries out the chunk in each, so
one network evaluation serves all of them. An episode's noise is drawn from its own seed, and its
states depend on nothing else: what it does is the same alone and among fifty, up to how the
network's products are rounded.

    states [B, To, S] ──▶ act(states, noise) ──▶ chunk [B, H, A]
    chunk[:, To-1 : To-1+execute] is carried out: the first action of a chunk is that of the oldest
    of the To states, as in training.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rollart.errors import EnvError, UserError
from rollart_robot.envs import Floats, RobotEnv, make_env

Watch = Callable[[int, RobotEnv, bool], None]
"""Gets an episode's place among the seeds, its environment, and whether the episode is over."""


class ChunkPolicy(Protocol):
    """Says what to do next in several environments at once.

    Example:
        >>> act = policy.act_on
        >>> act(states, noise).shape  # [50, 2, 21], [50, 4, 4]
        (50, 4, 4)

    """

    def __call__(self, states: Floats, noise: Floats, points: Floats | None = None) -> Floats:
        """Return chunks `[B, H, A]` for states `[B, To, S]`, noise `[B, H, A]` of N(0, I).

        `points` `[B, To, N, 3]` is given if the policy sees point clouds; states are then the
        robot's own part alone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySettings:
    """How a policy's chunks are carried out.

    Example:
        >>> PlaySettings(horizon=4, execute=3, observation_steps=2)

    """

    horizon: int = 4
    """Actions in a chunk."""
    execute: int = 3
    """Actions of a chunk that are carried out before the policy is asked again."""
    observation_steps: int = 2
    """Latest states that the policy sees; before there are so many, the first is repeated."""
    points: int = 0
    """Size of the point clouds that the policy sees; 0: it sees states."""
    noise_seed: int = 0
    """Another one gives the same resets other noise."""
    stop_at_success: bool = True

    def __post_init__(self) -> None:
        last = self.observation_steps - 1 + self.execute
        if min(self.execute, self.observation_steps) < 1 or last > self.horizon:
            raise UserError(
                f"execute = {self.execute}: with {self.observation_steps} observation steps must "
                f"be from 1 to {self.horizon - self.observation_steps + 1}, or raise the horizon "
                f"({self.horizon})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayResults:
    """How the episodes went, in the order of their seeds.

    Example:
        >>> results = play_episodes(act, "pick-place", evaluation_seeds(0, 50))
        >>> float(results.successes.mean())
        0.66

    """

    seeds: tuple[int, ...]
    successes: npt.NDArray[np.bool_]
    lengths: npt.NDArray[np.int64]
    """Steps to the success, or to the end."""
    returns: Floats
    """Sum of the rewards."""
    evaluations: int
    """Calls of the policy."""


def play_episodes(
    act: ChunkPolicy,
    task: str,
    seeds: Sequence[int],
    *,
    settings: PlaySettings | None = None,
    most_together: int = 50,
    watch: Watch | None = None,
) -> PlayResults:
    """Play one episode for each seed, at most so many at a time.

    `watch` is called after each reset and each step: to film the episodes, for example.
    """
    if not seeds:
        raise UserError("seeds: give at least one reset to play")
    chosen = settings or PlaySettings()
    envs = [make_env(task) for _ in range(min(most_together, len(seeds)))]
    waiting = deque(enumerate(seeds))
    running = [_Slot(env, chosen, watch) for env in envs]
    played = dict[int, _Slot.Outcome]()
    evaluations = 0
    try:
        for slot in running:
            slot.begin(*waiting.popleft())
        while running:
            chunks = _ask(act, running, chosen)
            evaluations += 1
            first = chosen.observation_steps - 1
            for slot, chunk in zip(list(running), chunks, strict=True):
                outcome = slot.carry_out(chunk[first : first + chosen.execute])
                if outcome is None:
                    continue
                played[slot.index] = outcome
                if waiting:
                    slot.begin(*waiting.popleft())
                else:
                    running.remove(slot)
    finally:
        for env in envs:
            env.close()
    outcomes = [played[index] for index in range(len(seeds))]
    return PlayResults(
        seeds=tuple(seeds),
        successes=np.array([outcome.success for outcome in outcomes]),
        lengths=np.array([outcome.length for outcome in outcomes]),
        returns=np.array([outcome.total for outcome in outcomes], dtype=np.float32),
        evaluations=evaluations,
    )


def _ask(act: ChunkPolicy, slots: Sequence["_Slot"], settings: PlaySettings) -> Floats:
    """Return the policy's chunk for each slot."""
    size = slots[0].env.action_size
    states = np.stack([np.stack(slot.states) for slot in slots])
    noise = np.stack([slot.noise((settings.horizon, size)) for slot in slots])
    if settings.points:
        chunks = act(states, noise, np.stack([np.stack(slot.clouds) for slot in slots]))
    else:
        chunks = act(states, noise)
    if chunks.shape != noise.shape:
        raise EnvError(f"the policy returned {chunks.shape}: must be {noise.shape}")
    return chunks


class _Slot:
    """An environment and the episode that is played in it."""

    @dataclass(frozen=True, slots=True)
    class Outcome:
        success: bool
        length: int
        total: float

    def __init__(
        self,
        env: RobotEnv,
        settings: PlaySettings,
        watch: Watch | None,
    ) -> None:
        self.env = env
        self.index = -1
        self.states = deque[Floats](maxlen=settings.observation_steps)
        self.clouds = deque[Floats](maxlen=settings.observation_steps)
        self._settings, self._watch = settings, watch
        self._random = np.random.default_rng(0)
        self._length, self._total, self._success = 0, 0.0, False

    def begin(self, index: int, seed: int) -> None:
        """Reset the environment for the next episode."""
        self.index = index
        self._random = np.random.default_rng([self._settings.noise_seed, seed, 3])
        self._length, self._total, self._success = 0, 0.0, False
        self.states.clear()
        self.clouds.clear()
        self._observe(self.env.reset(seed), is_last=False)

    def noise(self, shape: tuple[int, int]) -> Floats:
        """Draw the noise of the next chunk."""
        return self._random.standard_normal(shape, dtype=np.float32)

    def carry_out(self, actions: Floats) -> "_Slot.Outcome | None":
        """Act; return how the episode went if it is over."""
        for action in actions:
            state, reward, terminated, truncated, info = self.env.step(action)
            self._length += 1
            self._total += reward
            self._success = self._success or info["success"]
            is_won = self._success and self._settings.stop_at_success
            is_last = terminated or truncated or is_won
            self._observe(state, is_last=is_last)
            if is_last:
                return _Slot.Outcome(self._success, self._length, self._total)
        return None

    def _observe(self, state: Floats, *, is_last: bool) -> None:
        settings = self._settings
        if settings.points:
            state = state[: self.env.robot_size]
            _push(self.clouds, self.env.points(settings.points))
        _push(self.states, state)
        if self._watch is not None:
            self._watch(self.index, self.env, is_last)


def _push(history: "deque[Floats]", value: Floats) -> None:
    """Append a value; fill an empty history with it."""
    history.extend([value] * (1 if history else history.maxlen or 1))
