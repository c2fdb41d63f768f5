"""Parameters of a model, in the form the forward pass needs.

Query, key and value projections are fused into one matrix, gate and up into another. The rows of a
query or key head are reordered so that the two numbers that rotary embedding rotates together are
adjacent: a head is then an array of complex numbers and rotation is one product. Queries and keys
are reordered alike, so their dot products and the log-probs equal those of the Hugging Face model.
A load copies into existing tensors and checks first, so a failed one changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from rollart.errors import ModelError
from rollart.models.architecture import (
    EMBEDDING,
    HEAD,
    Architecture,
    check_tensors,
    check_tied,
)


@dataclass(slots=True, kw_only=True)
class Layer:
    """The tensors of one transformer layer; None where the model has no such parameter.

    Example:
        >>> read_parameters(weights, architecture=shape, device=cpu, dtype=torch.float32).layers[0]

    """

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    head_norm: torch.Tensor | None
    """Norm weight of every query and key head, one row each."""
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(slots=True, kw_only=True)
class Parameters:
    """All tensors of a model.

    Example:
        >>> parameters = read_parameters(
        ...     weights, architecture=shape, device=torch.device("cpu"), dtype=torch.float32
        ... )

    """

    embedding: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: torch.Tensor
    """The output projection; the embedding itself if the two are tied."""

    @property
    def layer_size(self) -> int:
        """Number of weights in the linear maps of one layer."""
        first = self.layers[0]
        return sum(each.numel() for each in (first.qkv, first.output, first.gate_up, first.down))

    def copy_from(self, other: "Parameters") -> None:
        """Overwrite every tensor in place with another model's of the same architecture."""
        for name in ("embedding", "norm", "head"):
            getattr(self, name).copy_(getattr(other, name))
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            for name in Layer.__dataclass_fields__:
                tensor, new = getattr(mine, name), getattr(theirs, name)
                if (tensor is None) != (new is None):
                    raise ModelError(f"{name}: present in only one of the old and the new weights")
                if tensor is not None:
                    tensor.copy_(new)


def read_parameters(
    weights: Mapping[str, Any],
    *,
    architecture: Architecture,
    device: torch.device,
    dtype: torch.dtype,
) -> Parameters:
    """Fuse weights with Hugging Face names (numpy arrays or torch tensors) into parameters."""
    _check(weights, architecture)
    reader = _Reader(weights, architecture, device=device, dtype=dtype)
    embedding = reader.take(EMBEDDING)
    return Parameters(
        embedding=embedding,
        layers=[_read_layer(reader, index, architecture) for index in range(architecture.layers)],
        norm=reader.take("model.norm.weight"),
        head=embedding if architecture.tied else reader.take(HEAD),
    )


def _check(weights: Mapping[str, Any], architecture: Architecture) -> None:
    """Raise a ModelError unless the weights are those that the config announces."""
    check_tensors({name: tuple(value.shape) for name, value in weights.items()}, architecture)
    if architecture.tied and HEAD in weights:
        check_tied(_readable(weights[EMBEDDING]), _readable(weights[HEAD]))


def _readable(value: Any) -> Any:
    """Return an array that torch may share; it warns of read-only memory, such as a store's."""
    is_locked = isinstance(value, numpy.ndarray) and not value.flags.writeable
    return value.copy() if is_locked else value


class _Reader:
    """Reads the tensors that an architecture announces, by name."""

    def __init__(
        self,
        weights: Mapping[str, Any],
        architecture: Architecture,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._weights = weights
        self._announced = architecture.shapes()
        self._device = device
        self._dtype = dtype

    def take(self, name: str) -> torch.Tensor:
        """Return a tensor of the model's dtype on its device."""
        tensor = torch.as_tensor(_readable(self._weights[name])).detach()
        return tensor.to(device=self._device, dtype=self._dtype, copy=True)

    def find(self, name: str) -> torch.Tensor | None:
        """Return a tensor, or None if the architecture has none of this name."""
        return self.take(name) if name in self._announced else None

    def stack(self, names: list[str]) -> torch.Tensor:
        """Return tensors stacked along their first axis."""
        return torch.cat([self.take(name) for name in names])

    def find_stack(self, names: list[str]) -> torch.Tensor | None:
        """Return tensors stacked along their first axis, or None if there are none."""
        return self.stack(names) if names[0] in self._announced else None


def _read_layer(reader: _Reader, index: int, architecture: Architecture) -> Layer:
    at, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
    names = [f"{at}.{part}_proj" for part in "qkv"]
    gates = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
    qkv_bias = reader.find_stack([f"{name}.bias" for name in names])
    return Layer(
        input_norm=reader.take(f"model.layers.{index}.input_layernorm.weight"),
        qkv=_interleave(reader.stack([f"{name}.weight" for name in names]), architecture),
        qkv_bias=None if qkv_bias is None else _interleave(qkv_bias, architecture),
        head_norm=_read_head_norm(reader, at, architecture),
        output=reader.take(f"{at}.o_proj.weight"),
        output_bias=reader.find(f"{at}.o_proj.bias"),
        mlp_norm=reader.take(f"model.layers.{index}.post_attention_layernorm.weight"),
        gate_up=reader.stack([f"{name}.weight" for name in gates]),
        gate_up_bias=reader.find_stack([f"{name}.bias" for name in gates]),
        down=reader.take(f"{mlp}.down_proj.weight"),
        down_bias=reader.find(f"{mlp}.down_proj.bias"),
    )


def _read_head_norm(reader: _Reader, at: str, architecture: Architecture) -> torch.Tensor | None:
    if not architecture.has_head_norm:
        return None
    dim = architecture.head_dim
    query = _pair(reader.take(f"{at}.q_norm.weight").view(1, dim))
    key = _pair(reader.take(f"{at}.k_norm.weight").view(1, dim))
    return torch.cat(
        [query.expand(architecture.query_heads, dim), key.expand(architecture.key_heads, dim)]
    )


def _interleave(fused: torch.Tensor, architecture: Architecture) -> torch.Tensor:
    """Reorder the rows of query and key heads; keep those of value heads."""
    dim = architecture.head_dim
    turned = (architecture.query_heads + architecture.key_heads) * dim
    heads = fused[:turned].view(-1, dim, *fused.shape[1:])
    return torch.cat([_pair(heads).reshape(turned, *fused.shape[1:]), fused[turned:]])


def _pair(heads: torch.Tensor) -> torch.Tensor:
    """Put element i of each head's first half next to element i of its second half."""
    dim = heads.shape[1]
    return heads.unflatten(1, (2, dim // 2)).transpose(1, 2).reshape(heads.shape)
