"""The architecture of a model: the one reading of a checkpoint that engine and trainer share.

The trainer runs the model that transformers makes of a directory, so a config means what
transformers resolves it to: older spellings, defaults of a class, and which of two entries wins are
never decided here. The engine takes every number, the rotary frequencies included, from that
resolved config. What it cannot run exactly is refused, because running it anyway would give wrong
log-probs without any error.

The tensors of a file are compared with what the config announces, by both sides: a bias that no
config entry announces would be used by one side and ignored by the other.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rollart.errors import ModelError, first_line
from rollart.models.files import is_checked, load_config, weight_files

MODEL_TYPES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
"""Types whose frequencies are fixed up to `max_position_embeddings`, the engine's own limit."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ROTARY = ".rotary_emb.inv_freq"
"""A tensor in older exports; ignored, because it follows from the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of a decoder-only transformer.

    Example:
        >>> read_architecture(resolve_config(Path("models/tiny"))).model_type
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
    frequencies: tuple[float, ...]
    """The rotary frequencies, one per pair of head dimensions."""
    rotary_scale: float
    """What rotated queries and keys are multiplied by: 1 but for YaRN."""
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    window: int
    """Positions that windowed layers attend to, the present one included; 0: no layer has one."""
    windowed: tuple[bool, ...]
    """Which layers are windowed."""

    @property
    def has_head_norm(self) -> bool:
        """Whether queries and keys are normalised per head."""
        return self.model_type == "qwen3"

    def inverse_frequencies(self) -> torch.Tensor:
        """Return the rotary frequencies as a tensor."""
        return torch.tensor(self.frequencies)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor that the config announces, by Hugging Face name."""
        shapes = {EMBEDDING: (self.vocab, self.hidden), "model.norm.weight": (self.hidden,)}
        if not self.tied:
            shapes[HEAD] = (self.vocab, self.hidden)
        for index in range(self.layers):
            layer = f"model.layers.{index}"
            shapes |= {f"{layer}.{name}": shape for name, shape in self._layer_shapes().items()}
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, wide = self.hidden, self.intermediate
        queries, keys = self.query_heads * self.head_dim, self.key_heads * self.head_dim
        linear = {
            "self_attn.q_proj": (queries, hidden, self.has_qkv_bias),
            "self_attn.k_proj": (keys, hidden, self.has_qkv_bias),
            "self_attn.v_proj": (keys, hidden, self.has_qkv_bias),
            "self_attn.o_proj": (hidden, queries, self.has_output_bias),
            "mlp.gate_proj": (wide, hidden, self.has_mlp_bias),
            "mlp.up_proj": (wide, hidden, self.has_mlp_bias),
            "mlp.down_proj": (hidden, wide, self.has_mlp_bias),
        }
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        if self.has_head_norm:
            shapes |= dict.fromkeys(
                ("self_attn.q_norm.weight", "self_attn.k_norm.weight"), (self.head_dim,)
            )
        for name, (rows, columns, has_bias) in linear.items():
            shapes[f"{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{name}.bias"] = (rows,)
        return shapes


def resolve_config(source: Path | Mapping[str, Any]) -> PreTrainedConfig:
    """Return what transformers makes of a model's directory, or of the content of a config.json.

    Example:
        >>> resolve_config({"model_type": "llama", "rope_theta": 5e5}).rope_parameters
        {'rope_theta': 500000.0, 'rope_type': 'default'}

    """
    try:
        if isinstance(source, Path):
            load_config(source)
            return AutoConfig.from_pretrained(source)
        # Copied, because transformers completes nested values in place.
        values = copy.deepcopy(dict(source))
        _check_type(values.get("model_type"))
        return CONFIG_MAPPING[values["model_type"]].from_dict(values)
    except (ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        where = f"{source}: " if isinstance(source, Path) else ""
        reason = " ".join(str(error).split())
        raise ModelError(f"{where}config.json is refused by transformers: {reason}") from error


def read_architecture(config: PreTrainedConfig | Mapping[str, Any]) -> Architecture:
    """Read a config; raise a ModelError if the engine cannot run the model exactly."""
    if isinstance(config, Mapping):
        config = resolve_config(config)
    given: Any = config
    _check_type(given.model_type)
    if given.hidden_act not in ("silu", "swish"):
        raise ModelError(f"hidden_act = {given.hidden_act!r}: the torch engine runs silu")
    if getattr(given, "quantization_config", None):
        raise ModelError("quantization_config: the torch engine runs plain weights only")
    hidden, heads = given.hidden_size, given.num_attention_heads
    head_dim: int = getattr(given, "head_dim", None) or hidden // heads
    if heads % given.num_key_value_heads:
        raise ModelError(
            f"num_attention_heads = {heads} is no multiple of "
            f"num_key_value_heads = {given.num_key_value_heads}"
        )
    frequencies, scale = _read_rope(given, head_dim)
    has_bias, is_qwen2 = bool(getattr(given, "attention_bias", False)), given.model_type == "qwen2"
    window, windowed = _read_windows(given)
    return Architecture(
        model_type=given.model_type,
        vocab=given.vocab_size,
        hidden=hidden,
        intermediate=given.intermediate_size,
        layers=given.num_hidden_layers,
        query_heads=heads,
        key_heads=given.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=float(given.rms_norm_eps),
        tied=bool(given.tie_word_embeddings),
        max_positions=given.max_position_embeddings,
        frequencies=frequencies,
        rotary_scale=scale,
        has_qkv_bias=has_bias or is_qwen2,
        has_output_bias=has_bias and not is_qwen2,
        has_mlp_bias=bool(getattr(given, "mlp_bias", False)) and given.model_type == "llama",
        window=window,
        windowed=windowed,
    )


def _check_type(model_type: object) -> None:
    if model_type not in MODEL_TYPES:
        raise ModelError(
            f"model_type = {model_type!r}: the torch engine runs {', '.join(MODEL_TYPES)}"
        )


def _read_windows(config: Any) -> tuple[int, tuple[bool, ...]]:
    """Return the window and which layers have it; a Llama has none, whatever its config says."""
    kinds = ["full_attention"] * config.num_hidden_layers
    if config.model_type != "llama":
        kinds = list(config.layer_types)
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown or len(kinds) != config.num_hidden_layers:
        raise ModelError(
            f"layer_types = {kinds}: the torch engine runs full_attention and sliding_attention, "
            f"one entry for each of {config.num_hidden_layers} layers"
        )
    windowed = tuple(kind == "sliding_attention" for kind in kinds)
    if not any(windowed):
        return 0, windowed
    if not config.sliding_window:
        raise ModelError(
            f"sliding_window = {config.sliding_window!r}: layer_types names sliding_attention, so "
            "it must be a whole number (with use_sliding_window = true)"
        )
    return int(config.sliding_window), windowed


def _read_rope(config: Any, head_dim: int) -> tuple[tuple[float, ...], float]:
    """Return the rotary frequencies and scale, computed by transformers' own functions."""
    rope: Mapping[str, Any] = config.rope_parameters
    kind = rope.get("rope_type")
    if kind not in ROPE_TYPES:
        raise ModelError(f"rope_type = {kind!r}: the torch engine runs {', '.join(ROPE_TYPES)}")
    if float(rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError("partial_rotary_factor: the torch engine rotates whole heads only")
    if kind == "default":
        places = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
        return tuple((1.0 / (rope["rope_theta"] ** places)).tolist()), 1.0
    try:
        found, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(f"rope_parameters of type {kind}: {first_line(error)}") from error
    if len(found) != head_dim // 2 or not torch.isfinite(found).all():
        raise ModelError(f"rope_parameters of type {kind} give no frequency for each pair")
    return tuple(found.tolist()), float(scale)


def check_tensors(shapes: Mapping[str, tuple[int, ...]], architecture: Architecture) -> None:
    """Raise a ModelError unless these are the tensors that a config announces.

    The output layer of a tied model may be there too; `check_tied` compares its values.
    """
    wanted = architecture.shapes()
    if architecture.tied:
        wanted[HEAD] = wanted[EMBEDDING]
    found = {name for name in shapes if not name.endswith(_ROTARY)}
    for name in sorted(wanted.keys() - found - ({HEAD} if architecture.tied else set())):
        raise ModelError(f"{name} is missing from the weights, but the config announces it")
    unknown = sorted(found - wanted.keys())
    if unknown:
        raise ModelError(describe_unannounced(unknown))
    for name in sorted(found):
        if shapes[name] != wanted[name]:
            raise ModelError(f"{name} has shape {shapes[name]}: the config needs {wanted[name]}")


def describe_unannounced(names: list[str]) -> str:
    """Return the message about tensors of a file that its config does not announce."""
    fix = "use the weights of the config's own model"
    if names[0].endswith(".bias"):
        fix = "set attention_bias or mlp_bias in config.json if the model has it, or remove it"
    return (
        f"{names[0]} is not a parameter of this model ({len(names)} such names): the config does "
        f"not announce it, so engine and trainer could read it differently; {fix}"
    )


def check_tied(embedding: Any, head: Any) -> None:
    """Raise a ModelError if a tied model's two matrices differ."""
    left, right = torch.as_tensor(embedding), torch.as_tensor(head)
    is_same = left.shape == right.shape and bool(
        ((left == right) | (left.isnan() & right.isnan())).all()
    )
    if not is_same and is_checked("tensors"):
        raise ModelError(
            f"tie_word_embeddings = true, but {HEAD} differs from {EMBEDDING}: set it to false in "
            f"config.json, or remove {HEAD} from the weights"
        )


def check_weights(directory: Path, architecture: Architecture) -> None:
    """Compare the tensors in a directory's files with what its config announces.

    Reads names and shapes alone, and two matrices where a tied model has both.

    Example:
        >>> check_weights(Path("models/tiny"), read_architecture(resolve_config(...)))

    """
    shapes: dict[str, tuple[int, ...]] = {}
    tied: dict[str, torch.Tensor] = {}
    for file in weight_files(directory):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    shapes[name] = tuple(opened.get_slice(name).get_shape())
                    if architecture.tied and name in (EMBEDDING, HEAD):
                        tied[name] = opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: cannot be read as safetensors: {error}") from error
    check_tensors(shapes, architecture)
    if len(tied) > 1:
        check_tied(tied[EMBEDDING], tied[HEAD])
