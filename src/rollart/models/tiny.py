"""Tiny Qwen3-shaped models, built here because a machine may have no access to a model hub.

Embeddings are untied, so an engine that reloads weights must load both matrices. The same size,
seed and tokenizer give the same weights. The result is a normal Hugging Face checkpoint directory.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

from rollart.atomic_files import written_whole
from rollart.errors import ConfigError, StorageError
from rollart.models.tokenizer import END, PAD

_ROPE_BASE = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The dimensions of a tiny model.

    Example:
        SHAPES["0.3M"] == Shape(width=96, layers=2, heads=4, kv_heads=2, inner=256, head=24)

    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    head: int


SHAPES = {
    "0.2M": Shape(width=64, layers=2, heads=2, kv_heads=2, inner=256, head=32),
    "0.3M": Shape(width=96, layers=2, heads=4, kv_heads=2, inner=256, head=24),
    "1M": Shape(width=160, layers=3, heads=5, kv_heads=5, inner=384, head=32),
    "5M": Shape(width=256, layers=6, heads=8, kv_heads=4, inner=704, head=32),
    "20M": Shape(width=448, layers=8, heads=14, kv_heads=7, inner=1344, head=32),
}


def build_tiny(
    size: str, *, directory: Path, seed: int, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Write a freshly initialised model and its tokenizer to `directory`."""
    model = make_tiny(size, seed=seed, tokenizer=tokenizer)
    save_model(model, tokenizer=tokenizer, directory=directory)


def save_model(
    model: PreTrainedModel, *, tokenizer: PreTrainedTokenizerBase, directory: Path
) -> None:
    """Write a normal Hugging Face checkpoint: configuration, safetensors, tokenizer."""
    logging.disable_progress_bar()
    with written_whole(directory) as target:
        try:
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
        except SafetensorError as error:  # a full disk
            fix = "make room, or choose another directory"
            raise StorageError(f"cannot write {directory}: {error}; {fix}") from error


def make_tiny(size: str, *, seed: int, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Return a freshly initialised model in memory."""
    if size not in SHAPES:
        raise ConfigError("model.path", f"tiny:{size}", f"size must be one of {', '.join(SHAPES)}")
    shape = SHAPES[size]
    vocabulary = tokenizer.get_vocab()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head,
        max_position_embeddings=tokenizer.model_max_length,
        rope_parameters={"rope_type": "default", "rope_theta": _ROPE_BASE},
        initializer_range=shape.width**-0.5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=vocabulary[END],
        pad_token_id=vocabulary[PAD],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
