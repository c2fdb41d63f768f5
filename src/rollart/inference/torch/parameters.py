"""Architecture and parameters of a model, in the form the forward pass needs.

`read_architecture` accepts Llama, Qwen2 and Qwen3 with full attention. Anything else is refused,
because running it would give wrong log-probs without any error.

Query, key and value projections are fused into one matrix, gate and up into another. The rows of a
query or key head are reordered so that the two numbers that rotary embedding rotates together are
adjacent: a head is then an array of complex numbers and rotation is one product. Queries and keys
are reordered alike, so their dot products and the log-probs equal those of the Hugging Face model.
A load copies into existing tensors and checks first, so a failed one changes nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy
import torch

from rollart.errors import ModelError

_MODEL_TYPES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of a decoder-only transformer.

    Example:
        >>> read_architecture(load_config(Path("models/tiny"))).model_type
        'qwen3'

    """

    model_type: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    query_heads: int
    key_heads: int
    head_dim: int
    norm_eps: float
    tied: bool
    """Whether the output projection shares the embedding's weights."""
    max_positions: int
    rope: Mapping[str, float | str]

    @property
    def has_head_norm(self) -> bool:
        """Whether queries and keys are normalised per head."""
        return self.model_type == "qwen3"

    def inverse_frequencies(self) -> torch.Tensor:
        """Return the rotary frequencies, one per pair of head dimensions."""
        theta = float(self.rope["rope_theta"])
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        frequencies = 1.0 / (theta**exponents)
        match self.rope["rope_type"]:
            case "default":
                return frequencies
            case "linear":
                return frequencies / float(self.rope["factor"])
            case _:
                return self._llama3(frequencies)

    def _llama3(self, frequencies: torch.Tensor) -> torch.Tensor:
        """Divide low frequencies by `factor`, keep high ones and blend those between."""
        factor, low, high, original = (
            float(self.rope[name])
            for name in (
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            )
        )
        turns = original * frequencies / (2 * math.pi)
        blend = ((turns - low) / (high - low)).clamp(0, 1)
        return frequencies * (blend + (1 - blend) / factor)


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Read a Hugging Face config; raise a ModelError if the engine cannot run the model."""
    model_type = config.get("model_type")
    if model_type not in _MODEL_TYPES:
        raise ModelError(
            f"model_type = {model_type!r}: the torch engine runs {', '.join(_MODEL_TYPES)}"
        )
    _refuse_unsupported(config)
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    return Architecture(
        model_type=cast(str, model_type),
        vocab=_number(config, "vocab_size"),
        hidden=hidden,
        intermediate=_number(config, "intermediate_size"),
        layers=_number(config, "num_hidden_layers"),
        query_heads=heads,
        key_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tied=bool(config.get("tie_word_embeddings", False)),
        max_positions=_number(config, "max_position_embeddings"),
        rope=_read_rope(config),
    )


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int):
        raise ModelError(f"{name} = {value!r}: the model's config must give a whole number")
    return value


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    sliding = [kind for kind in config.get("layer_types") or () if kind != "full_attention"]
    if config.get("use_sliding_window") or sliding:
        raise ModelError(
            "use_sliding_window or layer_types asks for windowed attention: the torch engine runs "
            "full attention only"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act = {config['hidden_act']!r}: the torch engine runs silu")


def _read_rope(config: Mapping[str, Any]) -> dict[str, float | str]:
    """Return rope_type, rope_theta and the type's parameters, from either config format."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope: dict[str, float | str] = dict(given)
    rope.setdefault("rope_type", rope.get("type", "default"))
    rope.setdefault("rope_theta", float(config.get("rope_theta") or 10000.0))
    rope.setdefault("original_max_position_embeddings", config.get("max_position_embeddings") or 0)
    needed = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    }.get(str(rope["rope_type"]))
    if needed is None:
        raise ModelError(
            f"rope_type = {rope['rope_type']!r}: the torch engine runs default, linear and llama3"
        )
    for name in needed:
        if name not in rope:
            raise ModelError(f"rope_parameters.{name} is missing for rope_type {rope['rope_type']}")
    if float(rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError("partial_rotary_factor: the torch engine rotates whole heads only")
    return rope


_ROTARY = ".rotary_emb.inv_freq"
"""A tensor in older exports; ignored, because it follows from the config."""


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
    """Reads named tensors, checks their shapes and tracks which were never read."""

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
            value = value.copy()  # torch warns of read-only memory, such as a weight store's
        tensor = torch.as_tensor(value).detach()
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{name} has shape {tuple(tensor.shape)}: the config needs {shape}")
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
        """Raise a ModelError if a weight does not belong to the architecture."""
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
    """Reorder the rows of query and key heads; keep those of value heads."""
    dim = architecture.head_dim
    turned = (architecture.query_heads + architecture.key_heads) * dim
    heads = fused[:turned].view(-1, dim, *fused.shape[1:])
    return torch.cat([_pair(heads).reshape(turned, *fused.shape[1:]), fused[turned:]])


def _pair(heads: torch.Tensor) -> torch.Tensor:
    """Put element i of each head's first half next to element i of its second half."""
    dim = heads.shape[1]
    return heads.unflatten(1, (2, dim // 2)).transpose(1, 2).reshape(heads.shape)
