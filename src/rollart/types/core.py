"""The values everything shares: ids, tasks, results, failures, engines, rewards, programs.

All are frozen, so they can cross threads, processes and files. Nothing here knows how a policy
acts: what it read and did is the payload of a trajectory (`types.tokens`, `types.arrays`), and the
work that took is one number, its cost.
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

StopReason = Literal["terminated", "truncated", "max_turns", "max_tokens", "time_limit"]
"""Why an episode ended: the environment said so (first two), or a limit was reached."""
FailureKind = Literal[
    "env_error",
    "env_contract",
    "env_timeout",
    "episode_timeout",
    "parser",
    "player",
    "engine",
    "reward",
    "worker",
]
"""What failed when an attempt has no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem for an environment.

    Example:
        Task(id=12, env="frozen_lake", domain="frozen_lake", seed=7, payload={"size": 4})

    """

    id: int
    env: str
    """Name of the `[tasks.NAME]` section it comes from."""
    domain: str
    """Tasks of one domain are routed and counted together."""
    seed: int
    payload: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """What the environment and the reward functions know of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryInfo:
    """What control knows of a finished trajectory: everything but its payload.

    Example:
        TrajectoryInfo(id=41, born=3, reward=1.0, success=True, turns=5, cost=38,
                       stop="terminated", served={"torch-0": 5})

    """

    id: TrajectoryId
    born: Version
    """The version of the weights that chose the first action."""
    reward: float | None
    """None until a reward function has scored it."""
    success: bool
    turns: int
    """How many times the policy acted."""
    cost: int
    """How much the policy produced, in the payload's unit: sampled tokens for token turns."""
    stop: StopReason
    served: Mapping[EngineId, int] = field(default_factory=dict[EngineId, int])
    """Turns by the engine that completed them, where that is known."""
    is_compared: bool = False
    """Whether its reward depends on the other attempts at its task."""
    unread: int = 0
    """Turns in which the parser could not read what the policy wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt has no result; never a reward.

    Example:
        Failure(kind="env_timeout", message="lake: step took more than 5 s")

    """

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """An engine as control knows it.

    Example:
        EngineInfo(id="torch-0", pool="default", version=0)

    """

    id: EngineId
    pool: str
    version: Version
    lent: bool = False
    """Whether it lives on training hardware and serves only between a `Lend` and a `Recall`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one optimizer step measured, by metric name.

    Example:
        StepReport(version=4, metrics={"loss": -0.02, "entropy": 1.3, "clip_fraction": 0.01})

    """

    version: Version
    """The version the step produced."""
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The score a reward function gives one trajectory.

    Example:
        Reward(value=1.1, parts={"right": 1.0, "short": 0.1})

    """

    value: float
    """The number that is trained on; finite."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """What it is made of, by name: shown in the metrics, not trained on."""


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


ProgramEnd = Literal["exited", "killed", "wall", "cpu", "memory", "files", "lost"]
"""How a program ended: by itself, by a signal, by the limit it reached, or together with its
sandbox, which then reported no end or one that makes no sense."""


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
    memory_bytes: int | None = None
    """The most memory that all its processes and the sandbox's own held at once; None where nobody
    counts it."""
