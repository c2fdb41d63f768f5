from rollart.types import GroupId, Task, Trajectory, TrajectoryId, Turn, Version, token_trajectory


def record(id_: int, *, born: int = 0) -> Trajectory:
    turn = Turn(
        prompt_tokens=(1,),
        tokens=(2, 3),
        logprobs=(-0.5, -0.25),
        versions=(Version(born), Version(born + 1)),
        observation="?",
        action="!",
        reward=1.0,
    )
    return token_trajectory(
        id=TrajectoryId(id_),
        group=GroupId(0),
        task=Task(id=0, env="countdown", domain="games", seed=0),
        turns=(turn,),
        stop="terminated",
        success=True,
        reward=1.0,
    )
