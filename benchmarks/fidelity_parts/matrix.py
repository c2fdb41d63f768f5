"""A matrix of tiny models: every way of building and describing one that users have met.

A case is a directory: a random model of some shape, whose config.json or tensors may then be
changed by hand, as users do. Each case is either served exactly or refused with a message.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 61
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SHAPE: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
THETA: dict[str, Any] = {"rope_theta": 10_000.0}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": LLAMA3 | {"original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model: how it is built, and what is changed in its files afterwards.

    Example:
        >>> Case(name="llama tied", family="llama", shape={"tie_word_embeddings": True})

    """

    name: str
    family: str
    shape: Mapping[str, Any] = field(default_factory=dict[str, Any])
    edits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Entries of config.json that are set after saving; `...` removes one."""
    retouch: Callable[[Tensors], None] | None = None
    """Changes the tensors of the file."""
    beside: tuple[str, ...] = ()
    """Further files, of the content {}."""
    lora: tuple[str, ...] = ()
    """Layers that get an adapter, which is trained for a step first."""

    def write(self, directory: Path) -> Path:
        """Write the model's directory."""
        config, model_class = FAMILIES[self.family]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(sum(map(ord, self.name)))
            model = model_class(config(**{**SHAPE, **self.shape}))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "norm" in name:
                        parameter.uniform_(0.5, 1.5)
                    elif name.endswith("bias"):
                        parameter.uniform_(-0.5, 0.5)
        model.save_pretrained(directory)
        edit_config(directory, self.edits)
        if self.retouch is not None:
            tensors = load_file(directory / "model.safetensors")
            self.retouch(tensors)
            save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        for name in self.beside:
            (directory / name).write_text("{}")
        (directory / "tokenizer.json").write_text("{}")
        return directory


def edit_config(directory: Path, edits: Mapping[str, Any]) -> None:
    """Set entries of config.json; `...` removes one."""
    file = directory / "config.json"
    values = json.loads(file.read_text()) | edits
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def cases(*, is_quick: bool) -> Iterator[Case]:
    """Yield the matrix; quick: a tenth of the plain shapes, and all that is odd."""
    plain = list(_shapes())
    yield from plain[::10] if is_quick else plain
    for family in FAMILIES:
        yield from _adapters(family)
        yield from _odd_configs(family)
        yield from _odd_files(family)


def _shapes() -> Iterator[Case]:
    heads = {"MHA": 4, "GQA": 2, "MQA": 1}
    for family in FAMILIES:
        for is_tied in (False, True):
            for kind, keys in heads.items():
                for rope, values in ROPES.items():
                    yield Case(
                        name=f"{family} {'tied' if is_tied else 'untied'} {kind} {rope}",
                        family=family,
                        shape={
                            "tie_word_embeddings": is_tied,
                            "num_key_value_heads": keys,
                            "rope_parameters": {**THETA, **values},
                        },
                    )
        for head_dim in (4, 16, 32):
            yield Case(
                name=f"{family} head {head_dim}", family=family, shape={"head_dim": head_dim}
            )
    for name, biases in {
        "attention": {"attention_bias": True},
        "mlp": {"mlp_bias": True},
        "all": {"attention_bias": True, "mlp_bias": True},
    }.items():
        yield Case(name=f"llama {name} biases", family="llama", shape=biases)
    yield Case(name="qwen3 biases", family="qwen3", shape={"attention_bias": True})
    for family in ("qwen2", "qwen3"):
        for layers in (0, 1):
            for rope in ("default", "yarn"):
                yield Case(
                    name=f"{family} window after {layers} {rope}",
                    family=family,
                    shape={
                        "use_sliding_window": True,
                        "sliding_window": 9,
                        "max_window_layers": layers,
                        "rope_parameters": {**THETA, **ROPES[rope]},
                    },
                )


def _adapters(family: str) -> Iterator[Case]:
    for is_tied in (False, True):
        kind = "tied" if is_tied else "untied"
        for name, targets in {
            "attention": ("q_proj", "v_proj"),
            "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
            "head": ("q_proj", "lm_head"),
        }.items():
            yield Case(
                name=f"{family} {kind} adapters on {name}",
                family=family,
                shape={"tie_word_embeddings": is_tied},
                lora=targets,
            )


def _odd_configs(family: str) -> Iterator[Case]:
    """Yield configs as hands, older versions and other tools leave them."""
    scalings: dict[str, dict[str, Any]] = {
        f"two entries, {name}": {"rope_scaling": values} for name, values in ROPES.items()
    }
    odd: dict[str, dict[str, Any]] = scalings | {
        "older spelling": {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "older spelling alone": {
            "rope_parameters": ...,
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "rope_theta": 500.0,
        },
        "two thetas": {"rope_theta": 77.0},
        "theta alone": {"rope_parameters": ..., "rope_theta": 77.0},
        "no rope": {"rope_parameters": ...},
        "original positions on top": {
            "rope_parameters": THETA | LLAMA3,
            "original_max_position_embeddings": 32,
        },
        "original positions twice": {
            "rope_parameters": THETA | ROPES["llama3"],
            "original_max_position_embeddings": 32,
        },
        "no original positions": {"rope_parameters": THETA | LLAMA3},
        "YaRN of its own factor": {
            "rope_parameters": THETA | ROPES["yarn"] | {"attention_factor": 1.3, "beta_fast": 16.0}
        },
        "a window without its switch": {"sliding_window": 8},
        "a window with its switch": {
            "sliding_window": 8,
            "use_sliding_window": True,
            "max_window_layers": 0,
            "layer_types": ...,
        },
        "no norm epsilon": {"rms_norm_eps": ...},
        "no key heads": {"num_key_value_heads": ...},
        "no head dimension": {"head_dim": ...},
        "no word on tying": {"tie_word_embeddings": ...},
        "few positions": {"max_position_embeddings": 64},
        "longrope": {
            "rope_parameters": THETA
            | {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
            | {"factor": 4.0, "original_max_position_embeddings": 64}
        },
        "partial rotation": {"partial_rotary_factor": 0.5},
        "another activation": {"hidden_act": "gelu"},
        "quantised": {"quantization_config": {"quant_method": "fp8"}},
        "another family": {"model_type": "mistral"},
        "no factor": {"rope_scaling": {"rope_type": "linear"}},
        "fewer layers": {"num_hidden_layers": 1},
        "more layers": {"num_hidden_layers": 3},
        "another vocabulary": {"vocab_size": 64},
    }
    for name, edits in odd.items():
        yield Case(name=f"{family}: {name}", family=family, edits=edits)


def _odd_files(family: str) -> Iterator[Case]:
    """Yield files whose tensors are not those that the config announces."""
    tied = {"tie_word_embeddings": True}
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"

    def add_bias(tensors: Tensors) -> None:
        layer = "model.layers.1.self_attn.o_proj"
        tensors[f"{layer}.bias"] = torch.full((32,), 0.3)

    def double(tensors: Tensors) -> None:
        tensors[head] = tensors[embedding].clone()

    def differ(tensors: Tensors) -> None:
        tensors[head] = tensors[embedding].flip(0).contiguous()

    def drop_norm(tensors: Tensors) -> None:
        del tensors["model.norm.weight"]

    def add_frequencies(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)

    def add_head_bias(tensors: Tensors) -> None:
        tensors["lm_head.bias"] = torch.linspace(-1, 1, VOCABULARY)

    yield Case(name=f"{family}: a bias unannounced", family=family, retouch=add_bias)
    yield Case(name=f"{family}: a bias of the head", family=family, retouch=add_head_bias)
    yield Case(name=f"{family}: tied, twice the same", family=family, shape=tied, retouch=double)
    yield Case(name=f"{family}: tied, two matrices", family=family, shape=tied, retouch=differ)
    yield Case(name=f"{family}: no final norm", family=family, retouch=drop_norm)
    yield Case(name=f"{family}: old frequencies", family=family, retouch=add_frequencies)
    yield Case(name=f"{family}: an adapter beside", family=family, beside=("adapter_config.json",))
    if family != "qwen2":
        yield Case(
            name=f"{family}: announced biases missing",
            family=family,
            edits={"attention_bias": True},
        )
