"""The policy: the model being trained, what of it learns, and the ranks it is divided over.

A rank loads a policy before it joins the others: whatever is wrong with a model or an option fails
on every rank by itself, before anyone waits for anyone.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rollart.seeds import derive_seed
from rollart.training.distributed.process_group import ProcessGroup
from rollart.training.distributed.sharding import local, recompute_layers, shard
from rollart.training.model import Model, load_model
from rollart.training.options import TrainingOptions
from rollart.training.trainable import Trainable, open_trainable


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The model being trained, and how.

    Example:
        >>> policy = load_policy("Qwen/Qwen3-0.6B", TrainingOptions(), is_compared=False)
        >>> policy.is_plain, policy.reference
        (True, None)

    """

    model: Model
    reference: Model | None
    """The weights it began with, where the loss compares with them and nothing else holds them."""
    tuning: Trainable
    world: ProcessGroup
    source: str
    """Where the model came from: its tokenizer is there."""

    @property
    def is_plain(self) -> bool:
        """Whether the model is as transformers made it: one process, no adapters."""
        return not (isinstance(self.model, FSDPModule) or self.tuning.has_adapters)


def load_policy(source: str, options: TrainingOptions, *, is_compared: bool) -> Policy:
    """Load a model for training, whole.

    `is_compared`: the loss compares with the initial weights, so they are kept.
    """
    tuning = open_trainable(options.lora)
    model = _load(source, options, dtype=options.weights_dtype)
    tuning.prepare(model, seed=derive_seed(options.seed))
    if options.recompute:
        recompute_layers(model)
    keeps_reference = is_compared and not tuning.has_adapters
    reference = _load(source, options, dtype=options.dtype) if keeps_reference else None
    return Policy(
        model=model, reference=reference, tuning=tuning, world=ProcessGroup(), source=source
    )


def divide(policy: Policy, world: ProcessGroup, options: TrainingOptions) -> Policy:
    """Divide a policy over the ranks of a world, in place."""
    shard(policy.model, world, options)
    if policy.reference is not None:
        shard(policy.reference, world, options)
    return replace(policy, world=world)


def _load(source: str, options: TrainingOptions, *, dtype: str) -> Model:
    device = "cpu" if options.is_sharded else options.device
    return load_model(source, dtype=dtype, device=device)


class KeptWeights:
    """A copy, in host memory, of what learns in a policy: this rank's share of one version."""

    def __init__(self, policy: Policy, version: int) -> None:
        self.version = version
        self._copies = [each.detach().to("cpu", copy=True) for each in _learning(policy)]

    @contextmanager
    @torch.no_grad()
    def put_back(self, policy: Policy) -> Generator[None]:
        """Let the policy compute with this version until the block ends."""
        present = [each.detach().clone() for each in _learning(policy)]
        try:
            self._write(policy, self._copies)
            yield
        finally:
            self._write(policy, present)

    def _write(self, policy: Policy, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(_learning(policy), values, strict=True):
                parameter.copy_(value)


def _learning(policy: Policy) -> Iterator[Tensor]:
    """Yield this rank's share of each parameter that learns."""
    for parameter in policy.model.parameters():
        if parameter.requires_grad:
            yield local(parameter)
