"""Sharding: a model whose weights, gradients and moments are divided over ranks (FSDP2).

Each layer is a unit: gathered before it computes, given up after, its gradients added up over the
ranks (not averaged: the loss of a rank is its share of the whole batch's). A sharded tensor is cut
along its first dimension into pieces of equal size, the last ranks getting what is left, maybe
nothing; `Rows` says which are whose, so that files can be read at any number of ranks.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from rollart.errors import ModelError
from rollart.training.distributed.process_group import ProcessGroup
from rollart.training.model import Model
from rollart.training.options import TrainingOptions


def layers_of(model: Model) -> list[nn.Module]:
    """Return the model's repeated blocks, the units of sharding."""
    names: set[str] = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def recompute_layers(model: Model) -> None:
    """Let all layers but the last recompute their activations in the backward pass.

    The last one's are needed first and would be computed twice for nothing.
    """
    for layer in _known_layers(model, "training.recompute")[:-1]:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def shard(model: Model, world: ProcessGroup, options: TrainingOptions) -> None:
    """Divide a model over the ranks, in place."""
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if options.computes_copies else None,
        reduce_dtype=torch.float32,
    )
    is_cuda = torch.device(options.device).type == "cuda"
    offload = CPUOffloadPolicy(pin_memory=is_cuda) if options.offload else OffloadPolicy()
    for unit in (*_known_layers(model, "training.ranks"), model):
        fully_shard(unit, mesh=world.mesh, mp_policy=precision, offload_policy=offload)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def settle(model: Model) -> None:
    """Give up what a forward pass without a backward left gathered, lest it be used when stale."""
    if isinstance(model, FSDPModule):
        model.reshard()


def architecture(model: Model) -> str:
    """Return the name of the model's class; sharding puts classes of its own before it."""
    return next(kind.__name__ for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor gathered from all ranks; where nothing is sharded, itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """Return this rank's rows of a tensor, as a view."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Which rows of a tensor a rank holds; no end: it holds all of it."""

    start: int = 0
    end: int | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> "Rows":
        """Return the rows of a parameter that this rank holds."""
        if not isinstance(tensor, DTensor):
            return cls()
        piece = -(-tensor.shape[0] // tensor.device_mesh.size())
        start = min(tensor.device_mesh.get_rank() * piece, tensor.shape[0])
        return cls(start=start, end=min(start + piece, tensor.shape[0]))


def _known_layers(model: Model, field: str) -> list[nn.Module]:
    layers = layers_of(model)
    if not layers:
        raise ModelError(
            f"{type(model).__name__} does not say what its layers are: it cannot be divided; "
            f"leave {field} at its default"
        )
    return layers
