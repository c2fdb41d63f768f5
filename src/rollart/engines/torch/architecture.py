"""Architecture: the numbers of a Hugging Face config the engine needs, checked once.

Models of the Llama, Qwen2 and Qwen3 shape with full attention are read; anything else is refused
with a message, because running it would give silently wrong log-probs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from rollart.errors import ModelError

_MODEL_TYPES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of a decoder-only transformer."""

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
    """Whether the output projection is the embedding."""
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
        """Slow the long waves by `factor`, keep the short ones, blend those between."""
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
    """Read a Hugging Face config as a dict, refusing what the engine cannot run."""
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
    """Return rope_type, rope_theta and the type's parameters, from either config dialect."""
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
