"""Token turns: what a language model read and sampled, as the ids the engine saw.

No text is tokenised twice: a request holds the whole history as ids, a completion the ids that were
sampled, and a turn keeps both, so that the trainer sees exactly what the engine saw.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from rollart.constraints import AtLeast, check_fields
from rollart.types.core import TrajectoryId, Version

FinishReason = Literal["stop", "length", "abort"]
"""Why a completion ended: a stop token, its token budget, or an abort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    Example:
        Sampling(temperature=0.8, top_p=0.95, max_tokens=64)

    """

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
    """One turn to be completed: the whole history as token ids.

    Example:
        Request(session=41, turn=1, domain="frozen_lake", tokens=(1, 7, 9, 4), stop=(2,),
                sampling=Sampling(max_tokens=4), seed=977)

    """

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
    """What an engine sampled for one request; the three tuples are of equal length.

    Example:
        Completion(session=41, turn=1, tokens=(8, 2), logprobs=(-0.7, -0.1), versions=(3, 3),
                   finish="stop")

    """

    session: TrajectoryId
    turn: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token under the distribution it was drawn from."""
    versions: tuple[Version, ...]
    finish: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One completion and the observation before it.

    Example:
        Turn(prompt_tokens=(1, 7), tokens=(4, 2), logprobs=(-0.7, -0.1), versions=(3, 3),
             observation="left or right?", action="left", reward=1.0)

    """

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
class EpisodeLimits:
    """Where an episode is cut short.

    Example:
        EpisodeLimits(max_turns=8, max_tokens=512)

    """

    max_turns: Annotated[int, AtLeast(1)] = 16
    """Most completions in one episode."""
    max_tokens: Annotated[int, AtLeast(2)] = 512
    """Most tokens in one episode, prompts and completions together."""

    def __post_init__(self) -> None:
        check_fields(self, "tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTurns:
    """The payload of an attempt by a language model: its turns, in order.

    Example:
        TokenTurns(turns=(Turn(prompt_tokens=(1, 7), tokens=(4, 2), logprobs=(-0.7, -0.1),
                               versions=(Version(3), Version(3)), observation="left or right?",
                               action="left", reward=1.0),))

    """

    turns: tuple[Turn, ...]
    kind: Literal["token_turns"] = "token_turns"
    """Names the payload in files and messages."""

    def __len__(self) -> int:
        return len(self.turns)

    @property
    def born(self) -> Version:
        """The version that sampled the first token; 0 if none was sampled."""
        versions = (version for turn in self.turns for version in turn.versions)
        return next(versions, Version(0))

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(len(turn.tokens) for turn in self.turns)
