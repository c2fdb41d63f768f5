"""Parameters: a model's weights in the form the forward pass wants.

Query, key and value projections are one matrix, gate and up projections another. The rows of a
query or key head are reordered so that the two numbers rotary embedding turns together lie side
by side: a head is then an array of complex numbers and rotation is one product. Dot products of
queries and keys do not see the reordering, so log-probs are those of the Hugging Face model.

Loading copies into tensors made once; a load that fails its checks changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from rollart.engines.torch.architecture import Architecture
from rollart.errors import ModelError

_ROTARY = ".rotary_emb.inv_freq"
"""What older exports keep among the weights, though it follows from the config."""


@dataclass(slots=True, kw_only=True)
class Layer:
    """One transformer layer's tensors; None where the model has no such parameter."""

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
    """All tensors of a model."""

    embedding: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: torch.Tensor
    """The output projection; the embedding itself when the two are tied."""

    @property
    def layer_size(self) -> int:
        """Weights of the linear maps of one layer."""
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
    """Fuse weights named as in Hugging Face checkpoints (numpy arrays or torch tensors)."""
    reader = _Reader(weights, device=device, dtype=dtype)
    vocab, hidden = architecture.vocab, architecture.hidden
    embedding = reader.take("model.embed_tokens.weight", (vocab, hidden))
    if architecture.tied:
        reader.skip("lm_head.weight")
    parameters = Parameters(
        embedding=embedding,
        layers=[_read_layer(reader, index, architecture) for index in range(architecture.layers)],
        norm=reader.take("model.norm.weight", (hidden,)),
        head=embedding if architecture.tied else reader.take("lm_head.weight", (vocab, hidden)),
    )
    reader.finish()
    return parameters


class _Reader:
    """Takes named tensors, checking shapes, and knows which were never taken."""

    def __init__(
        self, weights: Mapping[str, Any], *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._weights = weights
        self._unread = {name for name in weights if not name.endswith(_ROTARY)}
        self._device = device
        self._dtype = dtype

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor of the model's dtype on its device."""
        if name not in self._weights:
            raise ModelError(f"{name} is missing from the weights")
        value = self._weights[name]
        if isinstance(value, numpy.ndarray) and not value.flags.writeable:
            value = value.copy()  # torch warns of memory it may not write, as a store's is
        tensor = torch.as_tensor(value).detach()
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{name} has shape {tuple(tensor.shape)}: the config wants {shape}")
        self._unread.discard(name)
        return tensor.to(device=self._device, dtype=self._dtype, copy=True)

    def take_all(self, names: list[str], shapes: list[tuple[int, ...]]) -> torch.Tensor | None:
        """Return the tensors stacked along their first axis, or None if all are absent."""
        if not any(name in self._weights for name in names):
            return None
        return torch.cat([self.take(*pair) for pair in zip(names, shapes, strict=True)])

    def skip(self, name: str) -> None:
        """Count a tensor as read."""
        self._unread.discard(name)

    def finish(self) -> None:
        """Refuse weights that the architecture has no place for."""
        if self._unread:
            raise ModelError(
                f"{min(self._unread)} is not a parameter of this model "
                f"({len(self._unread)} such names): use the weights of the config's own model"
            )


def _read_layer(reader: _Reader, index: int, architecture: Architecture) -> Layer:
    hidden, wide = architecture.hidden, architecture.intermediate
    dim, heads, keys = architecture.head_dim, architecture.query_heads, architecture.key_heads
    at, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
    names, rows = [f"{at}.{part}_proj" for part in "qkv"], [heads * dim, keys * dim, keys * dim]
    qkv = reader.take_all([f"{n}.weight" for n in names], [(count, hidden) for count in rows])
    qkv_bias = reader.take_all([f"{n}.bias" for n in names], [(count,) for count in rows])
    gates = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
    gate_up = reader.take_all([f"{n}.weight" for n in gates], [(wide, hidden)] * 2)
    if qkv is None or gate_up is None:
        raise ModelError(f"layer {index} of the model is missing from the weights")
    return Layer(
        input_norm=reader.take(f"model.layers.{index}.input_layernorm.weight", (hidden,)),
        qkv=_interleave(qkv, architecture),
        qkv_bias=None if qkv_bias is None else _interleave(qkv_bias, architecture),
        head_norm=_read_head_norm(reader, at, architecture),
        output=reader.take(f"{at}.o_proj.weight", (hidden, heads * dim)),
        output_bias=reader.take_all([f"{at}.o_proj.bias"], [(hidden,)]),
        mlp_norm=reader.take(f"model.layers.{index}.post_attention_layernorm.weight", (hidden,)),
        gate_up=gate_up,
        gate_up_bias=reader.take_all([f"{n}.bias" for n in gates], [(wide,)] * 2),
        down=reader.take(f"{mlp}.down_proj.weight", (hidden, wide)),
        down_bias=reader.take_all([f"{mlp}.down_proj.bias"], [(hidden,)]),
    )


def _read_head_norm(reader: _Reader, at: str, architecture: Architecture) -> torch.Tensor | None:
    if not architecture.has_head_norm:
        return None
    dim = architecture.head_dim
    query = _pair(reader.take(f"{at}.q_norm.weight", (dim,)).view(1, dim))
    key = _pair(reader.take(f"{at}.k_norm.weight", (dim,)).view(1, dim))
    return torch.cat(
        [query.expand(architecture.query_heads, dim), key.expand(architecture.key_heads, dim)]
    )


def _interleave(fused: torch.Tensor, architecture: Architecture) -> torch.Tensor:
    """Reorder the rows of query and key heads; value heads stay."""
    dim = architecture.head_dim
    turned = (architecture.query_heads + architecture.key_heads) * dim
    heads = fused[:turned].view(-1, dim, *fused.shape[1:])
    return torch.cat([_pair(heads).reshape(turned, *fused.shape[1:]), fused[turned:]])


def _pair(heads: torch.Tensor) -> torch.Tensor:
    """Put element i of each head's first half next to element i of its second half."""
    dim = heads.shape[1]
    return heads.unflatten(1, (2, dim // 2)).transpose(1, 2).reshape(heads.shape)
