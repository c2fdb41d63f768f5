"""The ports of training: what a trainer, an algorithm and a kind of policy must offer.

`Trainer` is the object, `RankTrainer` one of several that work as one, `RemoteTrainer` the same
behind a handle, awaited. An `Algorithm` is given arrays over all tokens of a batch and turns them
into advantages and losses, so that one file holds all of it. A `PolicyRuntime` is everything a run
asks of the kind of policy it trains, so that policies other than language models are added by a
package of their own. Neither numpy nor torch is imported here.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from rollart.ports import Array, Renderer
from rollart.types import Json, StepReport, Trajectory, Version
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


class Learner(Protocol):
    """Learns from demonstrations, step by step: what the pipeline "imitation" drives.

    Example:
        >>> learner.step()
        {'loss': 0.31}
        >>> learner.save("runs/reach/checkpoints/step-000500")

    """

    def step(self) -> Mapping[str, float]:
        """Make one optimizer step; return its figures, `loss` among them."""
        ...

    def save(self, directory: str) -> None:
        """Write a checkpoint: a model that `PolicyRuntime.load` reads, and what a resume needs."""
        ...

    def load(self, directory: str) -> int:
        """Restore what `save` wrote, to the bit; return how many steps were made."""
        ...

    def close(self) -> None:
        """Release what the learner holds."""
        ...


class PolicyOptions(Protocol):
    """The kind of policy a run trains: a frozen dataclass whose fields are the keys of `[policy]`.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Walker:  # [policy] type = "walkers:Walker"
        ...     runtime: ClassVar[str] = "walkers:WalkerRuntime"
        ...     width: int = 64

    """

    runtime: ClassVar[str]
    """The `PolicyRuntime` of this kind, as "module:Class"."""


class PolicyRuntime(Protocol):
    """What a run asks of the kind of policy that it trains; made with the run's `Config`.

    A policy either writes tokens, which engines sample, or acts by itself inside the processes of
    the environments: `load` then makes it there, and players get it from `AttemptContext.policy`.

    Example:
        >>> runtime = LanguageRuntime(config)
        >>> model = runtime.prepare(print)
        >>> runtime.check(model)

    """

    trainer: ClassVar[str]
    """The `Trainer`, as "module:Class"; made with the keywords `model`, `store`, `options`,
    `algorithm`, `rank`, `world_size` and `address`."""
    unit: ClassVar[str]
    """What the cost of a trajectory counts, for progress: "tokens", "actions"."""

    def check_files(self) -> None:
        """Raise a UserError for a model that cannot be found, before anything is made of it."""
        ...

    def prepare(self, say: Callable[[str], None]) -> Path:
        """Return the directory of the model that a new run starts from; make it if need be."""
        ...

    def find(self, checkpoint: Path, notes: Mapping[str, Json], say: Callable[[str], None]) -> Path:
        """Return the directory of the model that a resumed run started from."""
        ...

    def check(self, model: Path) -> None:
        """Raise a UserError for a model that could not be trained or served."""
        ...

    def trainer_options(self) -> dict[str, Json]:
        """Return further keywords that the trainer is made with."""
        ...

    def renderer(self, model: Path) -> Renderer | None:
        """Return what writes messages as tokens; None for a policy that reads no text."""
        ...

    def encode(self, groups: Sequence[Sequence[Trajectory]]) -> Mapping[str, Array]:
        """Return a batch as the trainer's `step` takes it."""
        ...

    def load(self, model: Path, weights: Mapping[str, Array] | None) -> Any:
        """Return the policy that players act with; None as weights means those of the model.

        Only for policies that act inside the processes of the environments.
        """
        ...

    def learner(self) -> Learner:
        """Return what learns from demonstrations; raise a ConfigError if nothing does."""
        ...
