"""The ports of training: what a trainer and an algorithm must offer, as Protocols.

`Trainer` is the object, `RankTrainer` one of several that work as one, `RemoteTrainer` the same
behind a handle, awaited. An `Algorithm` is given arrays over all tokens of a batch and turns them
into advantages and losses, so that one file holds all of it. Neither numpy nor torch is imported
here.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from rollart.ports import Array
from rollart.types import StepReport, Version
from rollart.types.tokens import AlgorithmNeeds, Floats, Indices, LossTerms, TokenBatch, TokenLosses


class Trainer(Protocol):
    """Holds the policy's weights and makes optimizer steps; blocking, one call at a time.

    Every `step` advances the version by exactly one, whatever the batch held. Its callers, which
    live in other processes, see it as a `RemoteTrainer`.

    Example:
        >>> report = trainer.step(encode(groups))
        >>> report.version, report.metrics["updates"]
        (8, 1.0)
        >>> trainer.publish()
        8

    """

    def step(self, batch: Mapping[str, Array]) -> StepReport:
        """Make one optimizer step on a batch (`training.batch.encode`)."""
        ...

    def publish(self) -> Version:
        """Put the current weights into the weight store; return their version."""
        ...

    def save(self, directory: str) -> None:
        """Write a checkpoint: weights, optimizer, schedule and RNG state."""
        ...

    def load(self, directory: str) -> Version:
        """Restore what `save` wrote; return the version."""
        ...

    def export(self, directory: str) -> None:
        """Write a Hugging Face model directory."""
        ...

    def adapter(self) -> dict[str, Array]:
        """Return the tensors of the adapters alone."""
        ...

    def close(self) -> None:
        """Release what the trainer holds."""
        ...


class RankTrainer(Trainer, Protocol):
    """A trainer that makes its steps together with others, each of which holds a share.

    Example:
        >>> where = ranks[0].meeting()
        >>> for rank in ranks:  # each in a process of its own
        ...     rank.join(where)

    """

    def meeting(self) -> str:
        """Open the rendezvous on the first rank's machine; return its address."""
        ...

    def join(self, rendezvous: str) -> None:
        """Join the other ranks at the rendezvous and keep this rank's share of the weights."""
        ...


class RemoteTrainer(Protocol):
    """A trainer as the rest of the program sees it: the same methods, awaited.

    Example:
        >>> report = await trainer.step(batch)
        >>> version = await trainer.publish()

    """

    async def step(self, batch: Mapping[str, Array]) -> StepReport:
        """Make one optimizer step on a batch."""
        ...

    async def publish(self) -> Version:
        """Put the current weights into the weight store; return their version."""
        ...

    async def save(self, directory: str) -> None:
        """Write a checkpoint."""
        ...

    async def load(self, directory: str) -> Version:
        """Restore what `save` wrote; return the version."""
        ...

    async def close(self) -> None:
        """End the trainer."""
        ...


@runtime_checkable
class Algorithm(Protocol):
    """Turns rewards into a gradient: a frozen dataclass whose fields are the keys of `[algorithm]`.

    It is stateless. The trainer asks for advantages once a step and for token weights once a
    minibatch, on every rank for the whole batch, so all statistics are the same at any number of
    ranks and micro-batches; the loss is asked for micro-batch by micro-batch.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class BestOnly:  # [algorithm] type = "best.py:BestOnly"
        ...     above: float = 0.5
        ...     needs = AlgorithmNeeds()
        ...
        ...     def advantages(self, batch):
        ...         return (batch.rewards > self.above)[batch.owners].astype("float64")
        ...
        ...     def token_weights(self, counts, groups):
        ...         return counts * 0 + 1 / counts.sum()
        ...
        ...     def loss(self, terms):
        ...         return TokenLosses(losses=-terms.advantages * terms.logprobs)

    """

    @property
    def needs(self) -> AlgorithmNeeds:
        """What it asks of groups and of the trainer."""
        ...

    def advantages(self, batch: TokenBatch) -> Floats:
        """Return [T] advantages of all tokens; those of tokens not sampled are ignored."""
        ...

    def token_weights(self, counts: Indices, groups: Indices) -> Floats:
        """Return what one token of each sequence of a minibatch weighs in the loss.

        Given are each sequence's number of sampled tokens and its group. One without a sampled
        token counts as a sequence.
        """
        ...

    def loss(self, terms: LossTerms) -> TokenLosses:
        """Return the losses of a micro-batch's sampled tokens."""
        ...


@runtime_checkable
class TokenColumns(Protocol):
    """What an algorithm adds whose loss needs more of each token than its advantage.

    For selections over the whole batch, such as the tokens of largest covariance.

    Example:
        >>> def columns(self, batch, advantages):
        ...     return {"is_first_turn": (batch.turns == 0).astype("float64")}

    """

    def columns(self, batch: TokenBatch, advantages: Floats) -> Mapping[str, Floats]:
        """Return [T] values by name; the loss finds them in `LossTerms.columns`."""
        ...
