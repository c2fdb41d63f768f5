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
    "env_error",
    "env_contract",
    "env_timeout",
    "episode_timeout",
    "parser",
    "engine",
    "reward",
    "worker",
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
    served: Mapping[EngineId, int] = field(default_factory=dict[EngineId, int])
    """Turns by the engine that completed them, where that is known."""
    is_compared: bool = False
    """Whether its reward is to come of comparing it with the other attempts at its task."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What a reward function said of one trajectory."""

    value: float
    """The number that is trained on; finite."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """What it is made of, by name: shown in the metrics, not trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCall:
    """One invocation of a reward function: a trajectory, or a whole group's."""

    function: str
    """Written as "module:function", or the name of a shipped one."""
    options: Mapping[str, Json]
    """Keyword arguments the function is given beside the trajectories."""
    trajectories: tuple[Trajectory, ...]
    """One, or all attempts at a task for a function that compares them."""
    is_group: bool
    """Whether the function takes the whole tuple and returns one reward for each."""
    key: str
    """The same for every delivery of the same call: a second one must not score twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """What a program in a sandbox may use."""

    wall_s: float = 10.0
    """Seconds after which it is killed, whatever it does."""
    cpu_s: float = 10.0
    """Processor seconds it may use, all its processes together."""
    memory_bytes: int = 512 * 2**20
    """Memory it may hold, all its processes together."""
    processes: int = 32
    """Processes and threads it may have at once."""
    output_bytes: int = 2**20
    """Bytes kept of each of its two outputs; what is beyond is thrown away and said."""
    files_bytes: int = 64 * 2**20
    """Bytes it may write to its private files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Something to run where it can do no harm."""

    argv: tuple[str, ...]
    """The command; it starts in its private directory, which holds `files`."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Relative paths and what is in them."""
    stdin: bytes = b""
    limits: ProgramLimits = field(default_factory=ProgramLimits)


ProgramEnd = Literal["exited", "killed", "wall", "cpu", "memory", "files"]
"""How a program ended: by itself, by a signal, or by the limit it reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """What became of a program."""

    end: ProgramEnd
    exit_code: int
    """Its exit code; 128 + the signal's number if one ended it."""
    stdout: bytes
    stderr: bytes
    is_cut: bool
    """Whether output was thrown away."""
    wall_s: float
    start_s: float
    """Seconds from the call until the program ran: what the sandbox itself cost."""
    cpu_s: float | None = None
    """Processor seconds that all its processes used; None where nobody counts them."""
    waited_s: float | None = None
    """Of one that met its wall limit: the longest a thread of it was ready to run and had no
    processor, which sleeping is not; None where nobody counts that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """An array without its numbers."""

    shape: tuple[int, ...]
    dtype: str
    """As numpy writes it, byte order included."""
