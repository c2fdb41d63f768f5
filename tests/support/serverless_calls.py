"""Calls of the functions in `bad_rewards.py`."""

from itertools import count
from pathlib import Path

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

FILE = Path(__file__).with_name("bad_rewards.py")
_keys = count()


def attempt(*actions: str, number: int = 1) -> Trajectory:
    """A trajectory that gave these actions."""
    turns = tuple(
        Turn(
            prompt_tokens=(1, 2),
            tokens=(3,),
            logprobs=(-0.5,),
            versions=(Version(4),),
            observation="question",
            action=action,
            reward=0.0,
        )
        for action in actions
    )
    return token_trajectory(
        id=TrajectoryId(number),
        group=GroupId(2),
        task=Task(id=7, env="quiz", domain="quiz", seed=5),
        turns=turns,
        stop="terminated",
        success=False,
        reward=0.0,
    )


def call(
    function: str, *trajectories: Trajectory, is_group: bool = False, key: str = "", **options: Json
) -> ScoreCall:
    """A call of a function, with its options as keywords, under a key of its own."""
    return ScoreCall(
        function=function if ":" in function else f"{FILE}:{function}",
        options=options,
        trajectories=trajectories or (attempt("a"),),
        is_group=is_group,
        key=key or f"key/{next(_keys)}",
    )
