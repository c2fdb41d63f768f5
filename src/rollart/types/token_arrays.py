"""Token arrays: what an algorithm is given of a batch, and what it gives back.

The values of the port `Algorithm`. A batch is numpy arrays over all its tokens, seen once a step; a
loss is torch tensors over the sampled tokens of one micro-batch. Neither numpy nor torch is
imported here, so that a config can name an algorithm without loading them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy
    import torch

    Floats: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.floating[Any]]]
    Indices: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    Flags: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.bool_]]
    Tensor: TypeAlias = torch.Tensor
else:
    Floats = Indices = Flags = Tensor = object


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
