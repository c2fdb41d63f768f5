"""Workload: what every attempt would do, under any schedule.

A `Script` describes one attempt completely: how long its environment takes, what it reads and
samples in each turn, whether its environment fails, how long its reward takes. It depends only on
the seed, the task, the member and the try, so two schedules are compared on the same attempts. What
the members of a group share (the task: its difficulty, its image) is drawn once per task. A second
try and a hedge sample the same tokens as the attempt that they repeat, in another environment: only
its durations and failures are drawn again.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf
from random import Random
from typing import Annotated, NamedTuple, Protocol, overload

from rollart.config.simulation import LatencyKind
from rollart.constraints import AtLeast, Between, check_fields
from rollart.control.task_order import TaskKind, TaskMix
from rollart.errors import ConfigError
from rollart.events import Launch
from rollart.seeds import derive_seed
from rollart.types import EpisodeLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A distribution of durations.

    | kind      | mean_s                | spread                              |
    |-----------|-----------------------|-------------------------------------|
    | constant  | the value             | unused                              |
    | normal    | before clamping at 0  | standard deviation over the mean    |
    | lognormal | of the distribution   | standard deviation of the logarithm |

    Whatever the kind, a share `tail_share` of draws is `tail_factor` times as long.

    Example:
        Latency(kind="lognormal", mean_s=1.5, spread=0.8).draw(Random(0))  # seconds, 1.5 on average

    """

    kind: LatencyKind = "constant"
    """The distribution's shape."""
    mean_s: Annotated[float, AtLeast(0)] = 0.0
    """Its mean, without the tail."""
    spread: Annotated[float, AtLeast(0)] = 0.0
    """How wide it is; see the table of the class."""
    tail_share: Annotated[float, Between(0, 1)] = 0.0
    """Share of draws that take `tail_factor` times as long."""
    tail_factor: Annotated[float, AtLeast(1)] = 1.0
    """How many times longer those draws are."""

    def __post_init__(self) -> None:
        check_fields(self, "latency")

    def draw(self, random: Random) -> float:
        """Return one duration in seconds."""
        if self.mean_s == 0:
            return 0.0
        match self.kind:
            case "constant":
                seconds = self.mean_s
            case "normal":
                seconds = max(0.0, random.gauss(self.mean_s, self.mean_s * self.spread))
            case "lognormal":
                seconds = self.mean_s * unit_lognormal(random, self.spread)
        if self.tail_share and random.random() < self.tail_share:
            seconds *= self.tail_factor
        return seconds


def unit_lognormal(random: Random, spread: float) -> float:
    """Return a lognormal draw of mean 1."""
    return exp(random.gauss(0.0, spread) - spread * spread / 2) if spread else 1.0


class ScriptTurn(NamedTuple):
    """One turn of a script."""

    reads: int
    """New tokens the policy reads: an observation."""
    samples: int
    """Tokens it samples."""
    step_s: float
    """How long the environment takes to answer."""
    generate_s: float = 0.0
    """How long the completion takes on a `TimedEngine`, which models no hardware."""


class PackedTurns(Sequence[ScriptTurn]):
    """Turns in sixteen bytes each: there are millions, and more would not fit a CPU cache."""

    __slots__ = ("_opening", "_reads", "_values")

    def __init__(self, values: "array[float]", *, opening: int, reads: int) -> None:
        self._values = values
        """Sampled tokens and seconds of the environment's step, turn after turn."""
        self._opening = opening
        self._reads = reads

    def __len__(self) -> int:
        """Return how many turns there are."""
        return len(self._values) // 2

    def __eq__(self, other: object) -> bool:
        """Return whether two scripts have the same turns."""
        return isinstance(other, PackedTurns) and tuple(self) == tuple(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @overload
    def __getitem__(self, index: int) -> ScriptTurn: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ScriptTurn, ...]: ...
    def __getitem__(self, index: int | slice) -> ScriptTurn | tuple[ScriptTurn, ...]:
        """Return one turn, or a slice of them."""
        if isinstance(index, slice):
            return tuple(self)[index]
        at = 2 * index if index >= 0 else len(self._values) + 2 * index
        values = self._values
        reads = self._reads if at else self._opening
        return ScriptTurn(reads, int(values[at]), values[at + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Everything one attempt will do.

    Example:
        Script(domain="math", reset_s=2.0, turns=(ScriptTurn(reads=300, samples=900, step_s=0.5),),
               limits=EpisodeLimits(max_turns=4, max_tokens=8192), score_s=1.0, reward=1.0)

    """

    domain: str
    reset_s: float
    turns: Sequence[ScriptTurn]
    limits: EpisodeLimits
    score_s: float | None = None
    """How long its reward function takes; None: the environment's own reward is used."""
    fails: bool = False
    """Its environment fails when its reset ends."""
    reward: float = 0.0
    limit_s: float = inf
    """Time limit of the episode: the turn in which it passes is the last."""


class Workload(Protocol):
    """Provides scripts; `SyntheticWorkload` and `RecordedWorkload` implement it.

    Example:
        workload = SyntheticWorkload((TaskProfile(name="math", turns=(2, 4)),), seed=0)
        workload.domain(12) == "math"

    """

    def script(self, launch: Launch) -> Script:
        """Return the script of an attempt."""
        ...

    def domain(self, task: int) -> str:
        """Return the domain of a task."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProfile:
    """How attempts at one kind of task behave.

    Example:
        TaskProfile(name="math", turns=(2, 4), opening_tokens=300, reads=300, samples=3000,
                    reset=Latency(kind="lognormal", mean_s=15.0, spread=0.5))

    """

    name: str
    weight: float = 1.0
    """Its share of the mix, relative to the others'."""
    turns: tuple[int, int]
    """Fewest and most turns; tasks differ evenly between them."""
    turn_jitter: float = 0.1
    """How members of a group differ in turns: standard deviation, as a share of the task's."""
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
    """The reward function; None: the environment's own reward is used."""
    failure_rate: float = 0.0
    """Share of attempts whose environment fails at its reset."""
    failure_after: Latency | None = None
    """How long such a reset takes before it fails; None: as long as any other."""
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
        """Return the script of an attempt."""
        profile = self._profiles[self.domain(launch.task)]
        shared = Random(derive_seed(self._seed, launch.task, 2))
        member = launch.member if launch.doubles is None else launch.doubles
        own = place = Random(derive_seed(self._seed, launch.task, 3, member, 0))
        if launch.attempt or launch.doubles is not None:
            parts = launch.member, launch.attempt
            place = Random(derive_seed(self._seed, launch.task, 4, *parts))
        return _draw(profile, shared=shared, own=own, place=place)


def _draw(profile: TaskProfile, *, shared: Random, own: Random, place: Random) -> Script:
    """Draw what an attempt does from `own`, and what its environment does from `place`."""
    low, high = profile.turns
    typical = shared.uniform(low, high + 1)
    length = unit_lognormal(shared, profile.task_spread)
    reset_factor = unit_lognormal(shared, profile.reset_spread)
    step_factor = unit_lognormal(shared, profile.step_spread)
    jitter = own.gauss(0.0, profile.turn_jitter) if profile.turn_jitter else 0.0
    count = max(low, min(high, int(typical * (1 + jitter))))
    mean, spread = profile.samples * length, profile.samples_spread
    half, gauss, step = spread * spread / 2, own.gauss, profile.step.draw
    values = array("d")
    for _ in range(count):
        samples = int(mean * (exp(gauss(0.0, spread) - half) if spread else 1.0))
        values.append(samples if samples > 1 else 1)
        took_s = step(own)
        values.append(step_factor * (took_s if place is own else step(place)))
    turns = PackedTurns(values, opening=profile.opening_tokens, reads=profile.reads)
    reset_s = reset_factor * profile.reset.draw(own)
    score_s = None if profile.score is None else profile.score.draw(own)
    fails, reward = own.random() < profile.failure_rate, own.random()
    if place is not own:
        reset_s = reset_factor * profile.reset.draw(place)
        fails = place.random() < profile.failure_rate
    if fails and profile.failure_after is not None:
        reset_s = profile.failure_after.draw(place)
    return Script(
        domain=profile.name,
        reset_s=reset_s,
        turns=turns,
        limits=EpisodeLimits(max_turns=profile.turns[1], max_tokens=profile.max_tokens),
        score_s=score_s,
        fails=fails,
        reward=reward,
    )
