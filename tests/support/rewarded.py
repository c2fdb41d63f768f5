"""Trajectories to score, made short."""

from collections.abc import Mapping

from rollart.types import (
    GroupId,
    Json,
    ScoreCall,
    Task,
    Trajectory,
    TrajectoryId,
    Turn,
    Version,
    token_trajectory,
)


def attempt(
    *actions: str, payload: Mapping[str, Json] | None = None, number: int = 1, tokens: int = 3
) -> Trajectory:
    """A trajectory that gave these actions, each sampled as `tokens` tokens."""
    turns = tuple(
        Turn(
            prompt_tokens=(1, 2),
            tokens=tuple(range(tokens)),
            logprobs=(-0.5,) * tokens,
            versions=(Version(4),) * tokens,
            observation=f"question {n}",
            action=action,
            reward=0.0,
        )
        for n, action in enumerate(actions)
    )
    task = Task(id=7, env="quiz", domain="quiz", seed=5, payload=payload or {})
    return token_trajectory(
        id=TrajectoryId(number),
        group=GroupId(2),
        task=task,
        turns=turns,
        stop="terminated",
        success=False,
        reward=0.0,
    )


def call(function: str, *trajectories: Trajectory, is_group: bool = False, **options: Json):
    """A call of a function, with its options as keywords."""
    return ScoreCall(
        function=function,
        options=options,
        trajectories=trajectories,
        is_group=is_group,
        key=f"{function}/1",
    )
