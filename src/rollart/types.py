"""The words of the project as values: tasks, turns, trajectories, requests, completions.

Everything here is frozen and crosses boundaries. Token ids are what the engine saw and sampled;
no text is ever tokenised twice, so the trainer sees exactly these ids.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NewType, TypeAlias

TrajectoryId = NewType("TrajectoryId", int)
GroupId = NewType("GroupId", int)
EngineId = NewType("EngineId", str)
SlotId = NewType("SlotId", int)
Version = NewType("Version", int)

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

StopReason = Literal["terminated", "truncated", "max_turns", "max_tokens"]
"""Why an episode ended: the Env said so (first two) or the Episode's limits did."""
FinishReason = Literal["stop", "length", "abort"]
"""Why a completion ended: a stop token, its token budget, or an abort."""
FailureKind = Literal[
    "env_error", "env_contract", "env_timeout", "episode_timeout", "parser", "engine", "reward"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem an Env can pose."""

    id: int
    env: str
    domain: str
    seed: int
    payload: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int = 0
    """Keep this many likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the likeliest; 0 keeps all."""
    max_tokens: int = 16
    """Most tokens one turn may sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn to be completed: the whole history as token ids."""

    session: TrajectoryId
    """The trajectory: requests of one session share a growing prefix."""
    turn: int
    domain: str
    tokens: tuple[int, ...]
    sampling: Sampling
    stop: tuple[int, ...]
    """Token ids that end the completion; the one drawn is included in it."""
    seed: int
    """Seeds the draws of this request alone, whatever else is in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine sampled for one request; the three tuples are of equal length."""

    session: TrajectoryId
    turn: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token under the distribution it was drawn from."""
    versions: tuple[Version, ...]
    finish: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One completion and the observation that answered it."""

    prompt_tokens: tuple[int, ...]
    """Tokens new since the turn before, not sampled: the observation as the model read it."""
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[Version, ...]
    observation: str
    """What the agent saw before it acted."""
    action: str
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The finished record of one attempt at a task."""

    id: TrajectoryId
    group: GroupId
    task: Task
    turns: tuple[Turn, ...]
    stop: StopReason
    success: bool
    reward: float

    @property
    def born(self) -> Version:
        """The version that sampled the first token."""
        return self.turns[0].versions[0]

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(len(turn.tokens) for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryInfo:
    """What control knows of a finished trajectory: no tokens."""

    id: TrajectoryId
    born: Version
    reward: float | None
    """None until a reward function has scored it."""
    success: bool
    turns: int
    sampled_tokens: int
    stop: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt has no result; never a reward."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """An engine as control knows it."""

    id: EngineId
    pool: str
    version: Version
    lent: bool = False
    """Whether it lives on training hardware and serves only between a `Lend` and a `Recall`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one optimizer step measured, by metric name (`loss`, `entropy`, `clip_fraction` …)."""

    version: Version
    """The version the step produced."""
    metrics: Mapping[str, float]
