"""Tokens: what a language model read and sampled, and the arrays an algorithm makes losses of.

No text is tokenised twice: a request holds the whole history as ids, a completion the ids that were
sampled, and a turn keeps both, so that the trainer sees exactly what the engine saw.

The values of the port `Algorithm` are arrays: of a batch, numpy's over all its tokens, seen once a
step; of a loss, torch's over the sampled tokens of one micro-batch. Neither numpy nor torch is
imported here, so that a config can name an algorithm without loading them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from rollart.constraints import AtLeast, check_fields
from rollart.types.core import TrajectoryId, Version

if TYPE_CHECKING:
    import numpy
    import torch

    Floats: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.floating[Any]]]
    Indices: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    Flags: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.bool_]]
    Tensor: TypeAlias = torch.Tensor
else:
    Floats = Indices = Flags = Tensor = object


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
    is_cut: bool = False
    """Whether the completion ended because its tokens ran out, not with a stop token."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmNeeds:
    """What an algorithm asks of groups and of the trainer.

    Example:
        >>> AlgorithmNeeds(min_group_size=2, reference=True, idle_tokens=True)

    """

    min_group_size: int = 1
    """Fewest attempts at one task that it can compare."""
    reference: bool = False
    """The loss reads log-probs under the initial weights (`LossTerms.reference`)."""
    entropy: bool = False
    """The loss sends a gradient through the entropies (`LossTerms.entropies`)."""
    idle_tokens: bool = False
    """A token of advantage 0 can still have a gradient; False: the trainer may leave it out."""
    scores: bool = False
    """`advantages` reads `TokenBatch.proximal` (and `.reference`): one more pass of the model."""
    whole_attempts: bool = False
    """Attempts that a limit cut short are left out of the batch, as if they had failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """A whole batch as an algorithm sees it: n trajectories, K turns, T tokens, as flat arrays.

    Tokens of a trajectory are adjacent and in order, and so are its turns and the members of a
    group. Members that infrastructure failed are absent.

    Example:
        Two attempts at one task, the first of two turns, rewarded 1 and 0:

        >>> batch.groups, batch.rewards, batch.turn_owners
        ([0, 0], [1.0, 0.0], [0, 0, 1])
        >>> batch.owners, batch.turns, batch.sampled
        ([0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2], [F, T, F, T, F, T])
        >>> batch.rewards[batch.owners]  # each token gets its trajectory's reward
        [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]

    """

    rewards: Floats
    """[n] Reward of each trajectory."""
    successes: Flags
    """[n] Whether it succeeded."""
    groups: Indices
    """[n] Its group, from 0 without gaps."""
    sampled_counts: Indices
    """[n] How many sampled tokens it has."""
    turn_rewards: Floats
    """[K] What the environment gave for each turn."""
    turn_owners: Indices
    """[K] The trajectory of each turn."""
    owners: Indices
    """[T] The trajectory of each token."""
    turns: Indices
    """[T] The turn of each token, an index into `turn_rewards`."""
    sampled: Flags
    """[T] Whether the policy drew the token; only these count in a loss."""
    behaviour: Floats
    """[T] Log-prob of each token when it was drawn; 0 where not sampled."""
    ages: Indices
    """[T] How many versions older than the trainer's are the weights that drew it."""
    proximal: Floats | None = None
    """[T] Log-probs under the weights at the start of the step; None unless `needs.scores`."""
    reference: Floats | None = None
    """[T] Log-probs under the initial weights; None unless `needs.scores` and `.reference`."""
    turn_states: Indices | None = None
    """[K] What the agent saw before each turn, equal in a group where that is equal; or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """The N sampled tokens of a micro-batch as a loss sees them: one value each.

    A trajectory is never cut: all its sampled tokens are in the same micro-batch, so statistics
    of a sequence may be taken here. Statistics of the batch are taken in `advantages`.

    Example:
        >>> ratios = (terms.logprobs - terms.proximal).exp()
        >>> length = torch.bincount(terms.owners)[terms.owners]  # tokens of each one's trajectory

    """

    logprobs: Tensor
    """Under the weights being trained, with gradient."""
    proximal: Tensor
    """Under the weights at the start of the step."""
    behaviour: Tensor
    """When the tokens were drawn."""
    reference: Tensor | None
    """Under the initial weights; None unless `needs.reference`."""
    advantages: Tensor
    entropies: Tensor
    """Of the distribution each was drawn from, in nats; with gradient if `needs.entropy`."""
    owners: Tensor
    """The trajectory of each."""
    turns: Tensor
    """The turn of each."""
    weights: Tensor
    """What each loss is multiplied by before they are added up (`Algorithm.token_weights`)."""
    columns: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Further values of each token (`TokenColumns`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """A loss for each sampled token, and what the step reports of how it came about.

    Metrics are one value per token, by the name they get behind `trainer/`; an algorithm gives
    the same names for every micro-batch.

    Example:
        >>> TokenLosses(losses=losses, means={"clip_fraction": is_clipped}, maxima={"ratio_max": q})

    """

    losses: Tensor
    """The step minimises their sum, each times its weight."""
    parts: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Parts of the losses: reported added up with the same weights."""
    means: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Reported as means over tokens."""
    maxima: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Reported as the largest value; not negative."""
