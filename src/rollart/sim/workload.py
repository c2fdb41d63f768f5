"""Workload: what every attempt would do, whatever schedule runs it.

A `Script` is one attempt's whole course: how long its environment takes, what it reads and samples
in each turn, whether its environment fails, how long its reward takes. It depends only on the seed,
the task and the member, so two schedules are compared on the same attempts. What members of a
group share (the task: its difficulty, its image) is drawn once per task.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from rollart.control.tasks import TaskKind, TaskMix
from rollart.control.turns import Limits
from rollart.errors import ConfigError
from rollart.events import Launch
from rollart.seeds import derive_seed
from rollart.sim.latency import Latency, unit_lognormal


class ScriptTurn(NamedTuple):
    """One turn of a script; there are millions, and tuples are made fastest."""

    reads: int
    """New tokens the policy reads: an observation."""
    samples: int
    """Tokens it samples."""
    step_s: float
    """How long the environment takes to answer."""
    generate_s: float = 0.0
    """How long the completion takes where an engine is timed and not modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One attempt's course."""

    domain: str
    reset_s: float
    turns: tuple[ScriptTurn, ...]
    limits: Limits
    score_s: float | None = None
    """How long its reward takes; None if the environment's own reward stands."""
    fails: bool = False
    """Its environment fails when its reset ends."""
    reward: float = 0.0


class Workload(Protocol):
    """Where scripts come from."""

    def script(self, launch: Launch) -> Script:
        """Return the course of an attempt."""
        ...

    def domain(self, task: int) -> str:
        """Return the domain of a task."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProfile:
    """How attempts at one kind of task behave."""

    name: str
    weight: float = 1.0
    """Its share of the mix, relative to the others'."""
    turns: tuple[int, int]
    """Fewest and most turns; tasks differ evenly between them."""
    turn_jitter: float = 0.1
    """How much members of a group differ in turns: standard deviation of the logarithm."""
    opening_tokens: int = 500
    """Tokens of the first prompt."""
    reads: int = 200
    """Mean tokens of an observation."""
    samples: int = 100
    """Mean tokens of a completion."""
    samples_spread: float = 0.5
    """How completions of one attempt differ: standard deviation of the logarithm."""
    task_spread: float = 0.0
    """How tasks differ in length of completions: standard deviation of the logarithm."""
    reset: Latency = field(default_factory=Latency)
    """Reset of one member's environment."""
    reset_spread: float = 0.0
    """How tasks differ in their resets (their image): standard deviation of the logarithm."""
    step: Latency = field(default_factory=Latency)
    """One step of the environment."""
    step_spread: float = 0.0
    """How tasks differ in their steps: standard deviation of the logarithm."""
    score: Latency | None = None
    """The reward function; None if the environment's own reward stands."""
    failure_rate: float = 0.0
    """Share of attempts whose environment fails at its reset."""
    failure_after: Latency | None = None
    """How long such a reset takes until it is given up; None takes as long as any other."""
    max_tokens: int = 32768
    """Tokens after which an attempt is cut off."""

    def __post_init__(self) -> None:
        low, high = self.turns
        if not 1 <= low <= high:
            raise ConfigError("tasks.turns", self.turns, "must be two numbers, 1 <= low <= high")
        if not 1 <= self.opening_tokens < self.max_tokens:
            fix = f"must be at least 1 and leave room within max_tokens ({self.max_tokens})"
            raise ConfigError("tasks.opening_tokens", self.opening_tokens, fix)
        if not 0 <= self.failure_rate < 1:
            raise ConfigError("tasks.failure_rate", self.failure_rate, "must be from 0 to below 1")


class SyntheticWorkload:
    """Scripts drawn from task profiles."""

    def __init__(self, profiles: tuple[TaskProfile, ...], *, seed: int) -> None:
        if not profiles:
            raise ConfigError("tasks", [], "name at least one task")
        self._profiles: Mapping[str, TaskProfile] = {p.name: p for p in profiles}
        kinds = [TaskKind(name=p.name, domain=p.name, weight=p.weight) for p in profiles]
        self.tasks = TaskMix(kinds, seed=seed)
        """The stream of tasks."""
        self._seed = seed
        self._domains: dict[int, str] = {}

    def domain(self, task: int) -> str:
        """Return the domain of a task."""
        if task not in self._domains:
            self._domains[task] = self.tasks.domain(task)
        return self._domains[task]

    def script(self, launch: Launch) -> Script:
        """Return the course of an attempt."""
        profile = self._profiles[self.domain(launch.task)]
        shared = Random(derive_seed(self._seed, launch.task, 2))
        own = Random(derive_seed(self._seed, launch.task, 3, launch.member, launch.attempt))
        return _draw(profile, shared=shared, own=own)


def _draw(profile: TaskProfile, *, shared: Random, own: Random) -> Script:
    low, high = profile.turns
    typical = shared.uniform(low, high + 1)
    length = unit_lognormal(shared, profile.task_spread)
    reset_factor = unit_lognormal(shared, profile.reset_spread)
    step_factor = unit_lognormal(shared, profile.step_spread)
    jitter = own.gauss(0.0, profile.turn_jitter) if profile.turn_jitter else 0.0
    count = max(low, min(high, int(typical * (1 + jitter))))
    mean, spread, reads = profile.samples * length, profile.samples_spread, profile.reads
    turns = tuple(
        ScriptTurn(
            reads=profile.opening_tokens if turn == 0 else reads,
            samples=max(1, int(mean * unit_lognormal(own, spread))),
            step_s=step_factor * profile.step.draw(own),
        )
        for turn in range(count)
    )
    reset_s = reset_factor * profile.reset.draw(own)
    score_s = None if profile.score is None else profile.score.draw(own)
    fails, reward = own.random() < profile.failure_rate, own.random()
    if fails and profile.failure_after is not None:
        reset_s = profile.failure_after.draw(own)
    return Script(
        domain=profile.name,
        reset_s=reset_s,
        turns=turns,
        limits=Limits(max_turns=profile.turns[1], max_tokens=profile.max_tokens),
        score_s=score_s,
        fails=fails,
        reward=reward,
    )
