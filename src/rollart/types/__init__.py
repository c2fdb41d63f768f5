"""The values of the project, by what they are about; all are re-exported here.

`core` knows no kind of policy; `tokens` and `arrays` are the two kinds of payload a trajectory can
have; `trajectories` joins them; `attempts` is what a player gets and returns; `messages` are
conversations; `program` is what a sandbox runs; `token_arrays` are what an algorithm trains on.
"""

from rollart.types.arrays import ArraySpec, ArraySteps, ArrayValue
from rollart.types.attempts import AttemptSpec, Played, StepOutcome
from rollart.types.core import (
    EngineId,
    EngineInfo,
    Failure,
    FailureKind,
    GroupId,
    Json,
    Reward,
    SlotId,
    StepReport,
    StopReason,
    Task,
    TrajectoryId,
    TrajectoryInfo,
    Version,
)
from rollart.types.messages import (
    ImagePart,
    Message,
    Part,
    Role,
    TextPart,
    ToolCall,
    open_chat,
)
from rollart.types.program import Program, ProgramEnd, ProgramLimits, ProgramResult
from rollart.types.token_arrays import AlgorithmNeeds, LossTerms, TokenBatch, TokenLosses
from rollart.types.tokens import (
    Completion,
    EpisodeLimits,
    FinishReason,
    Request,
    Sampling,
    TokenTurns,
    Turn,
)
from rollart.types.trajectories import Payload, ScoreCall, Trajectory, token_trajectory

__all__ = [
    "AlgorithmNeeds",
    "ArraySpec",
    "ArraySteps",
    "ArrayValue",
    "AttemptSpec",
    "Completion",
    "EngineId",
    "EngineInfo",
    "EpisodeLimits",
    "Failure",
    "FailureKind",
    "FinishReason",
    "GroupId",
    "ImagePart",
    "Json",
    "LossTerms",
    "Message",
    "Part",
    "Payload",
    "Played",
    "Program",
    "ProgramEnd",
    "ProgramLimits",
    "ProgramResult",
    "Request",
    "Reward",
    "Role",
    "Sampling",
    "ScoreCall",
    "SlotId",
    "StepOutcome",
    "StepReport",
    "StopReason",
    "Task",
    "TextPart",
    "TokenBatch",
    "TokenLosses",
    "TokenTurns",
    "ToolCall",
    "Trajectory",
    "TrajectoryId",
    "TrajectoryInfo",
    "Turn",
    "Version",
    "open_chat",
    "token_trajectory",
]
