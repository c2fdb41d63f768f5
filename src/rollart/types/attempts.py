"""Attempts: what a player gets, what an environment answers, what the player returns."""

from dataclasses import dataclass

from rollart.types.core import GroupId, StopReason, Task, TrajectoryId
from rollart.types.tokens import EpisodeLimits, Sampling
from rollart.types.trajectories import Payload


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
class StepOutcome:
    """What an environment answers to an action.

    Example:
        StepOutcome(observation="a2", reward=0.0, terminated=False, truncated=False)

    """

    observation: str
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
