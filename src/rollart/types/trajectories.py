"""Attempts and trajectories: what a player gets and returns, its finished record, and its scoring.

What a policy read and did is the payload, one of the classes of `Payload`; every other field is the
same whatever the policy is. A new kind of payload is added to that union and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rollart.types.arrays import ArraySteps
from rollart.types.core import GroupId, Json, StopReason, Task, TrajectoryId, Version
from rollart.types.tokens import EpisodeLimits, Sampling, TokenTurns, Turn

Payload: TypeAlias = TokenTurns | ArraySteps
"""What a policy read and did in one attempt; `len` counts how often it acted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The finished record of one attempt at a task.

    Example:
        Trajectory(id=41, group=10, task=task, stop="terminated", success=True, reward=1.0,
                   born=3, cost=38, payload=TokenTurns(turns=turns))

    """

    id: TrajectoryId
    group: GroupId
    task: Task
    stop: StopReason
    success: bool
    reward: float
    born: Version
    """The version of the weights that chose the first action."""
    cost: int
    """How much the policy produced: sampled tokens for token turns, steps for array steps."""
    payload: Payload

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns of a language model; TypeError if another kind of policy acted."""
        if not isinstance(self.payload, TokenTurns):
            raise TypeError(
                f"trajectory {self.id} has no turns: its payload is {self.payload.kind}; "
                "read trajectory.payload"
            )
        return self.payload.turns


def token_trajectory(
    *,
    id: TrajectoryId,  # noqa: A002
    group: GroupId,
    task: Task,
    turns: tuple[Turn, ...],
    stop: StopReason,
    success: bool,
    reward: float,
) -> Trajectory:
    """Return the trajectory of a language model; what it cost and when it was born is counted.

    Example:
        token_trajectory(id=41, group=10, task=task, turns=turns, stop="terminated",
                         success=True, reward=1.0)

    """
    payload = TokenTurns(turns=turns)
    return Trajectory(
        id=id,
        group=group,
        task=task,
        stop=stop,
        success=success,
        reward=reward,
        born=payload.born,
        cost=payload.sampled_tokens,
        payload=payload,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCall:
    """One call of a reward function: for a trajectory, or for a whole group.

    Example:
        ScoreCall(function="exact", options={"key": "answer"}, trajectories=(trajectory,),
                  is_group=False, key="run-1/41")

    """

    function: str
    """Written as "module:function", or the name of a shipped one."""
    options: Mapping[str, Json]
    """Keyword arguments the function gets beside the trajectories."""
    trajectories: tuple[Trajectory, ...]
    """One, or all attempts at a task for a function that compares them."""
    is_group: bool
    """Whether the function takes the whole tuple and returns one reward for each."""
    key: str
    """The same for every delivery of the same call: a second one must not score twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpec:
    """What is known of an attempt before it is played.

    Example:
        AttemptSpec(id=41, group=10, task=task, system="You walk on ice.",
                    limits=EpisodeLimits(max_turns=8, max_tokens=512),
                    sampling=Sampling(max_tokens=4), seed=977)

    """

    id: TrajectoryId
    group: GroupId
    task: Task
    system: str
    """The environment's instructions; empty if it has none."""
    limits: EpisodeLimits
    sampling: Sampling
    seed: int
    """Seeds everything that is drawn in this attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentPolicy:
    """A policy of one version that acts inside the process of the environment.

    Example:
        resident = await attempt.policy()
        chunk = resident.policy.act(states, noise)
        attempt.note_action(resident.version, cost=1)

    """

    version: Version
    policy: Any
    """What `PolicyRuntime.load` made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What an environment answers to an action.

    Example:
        StepOutcome(observation="a2", reward=0.0, terminated=False, truncated=False)

    """

    observation: Any
    """Text; arrays where the environment has `arrays = True`."""
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None = None
    """None: the episode succeeded if it terminated with a positive sum of rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a player returns: how the attempt ended, and the record the trainer learns from.

    Example:
        Played(payload=TokenTurns(turns=turns), stop="terminated", success=True, reward=1.0)

    """

    payload: Payload
    stop: StopReason
    success: bool
    reward: float
