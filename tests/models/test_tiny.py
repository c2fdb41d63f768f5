import pytest
import torch
from chat_templates import tiny_tokenizer
from texts import shipped_texts
from transformers import AutoModelForCausalLM

from rollart.errors import ConfigError, StorageError
from rollart.models.files import load_config
from rollart.models.loader import load_weights
from rollart.models.options import SIZES
from rollart.models.tiny import SHAPES, build_tiny, make_tiny
from rollart.models.tokenizer import build_tokenizer, load_tokenizer


@pytest.mark.parametrize(
    ("size", "least", "most"),
    [
        ("0.2M", 0.17, 0.23),
        ("0.3M", 0.25, 0.35),
        ("1M", 0.85, 1.15),
        ("5M", 4.5, 5.5),
        ("20M", 18.0, 22.0),
    ],
)
def test_the_parameters_are_as_many_as_the_name_says(size, least, most):
    tokenizer = build_tokenizer(shipped_texts())
    count = sum(p.numel() for p in make_tiny(size, seed=0, tokenizer=tokenizer).parameters())
    assert least <= count / 1e6 <= most


def test_a_built_model_is_a_normal_checkpoint(tmp_path):
    build_tiny("0.3M", directory=tmp_path / "model", seed=1, tokenizer=tiny_tokenizer())
    names = {file.name for file in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.tie_word_embeddings is False
    weights = load_weights(tmp_path / "model")
    assert set(weights) == set(model.state_dict())
    assert "lm_head.weight" in weights
    assert load_config(tmp_path / "model")["architectures"] == ["Qwen3ForCausalLM"]
    assert len(load_tokenizer(tmp_path / "model")) == model.config.vocab_size


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_one_alone():
    before = torch.random.get_rng_state()
    first, again, other = (
        make_tiny("0.3M", seed=seed, tokenizer=tiny_tokenizer()).lm_head.weight
        for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_sizes_a_config_may_name_are_those_that_can_be_built():
    assert tuple(SHAPES) == SIZES


def test_an_unknown_size_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"size must be one of 0\.2M, 0\.3M, 1M, 5M, 20M"):
        build_tiny("7B", directory=tmp_path / "model", seed=0, tokenizer=tiny_tokenizer())


def test_a_place_that_refuses_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        build_tiny("0.3M", directory=tmp_path / "file" / "m", seed=0, tokenizer=tiny_tokenizer())
