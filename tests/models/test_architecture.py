"""What is read of a checkpoint, by engine and trainer alike, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import KINDS, forced_logprobs, make_model, make_request, make_tokens
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rollart.errors import ModelError
from rollart.inference.torch.engine import TorchEngine
from rollart.inference.torch.options import TorchEngineOptions
from rollart.models.architecture import (
    EMBEDDING,
    HEAD,
    check_weights,
    read_architecture,
    resolve_config,
)
from rollart.training.model import load_model
from rollart.types import Version

_CONFIG = make_model("llama3-rope").config


def test_llama3_frequencies_are_those_of_transformers() -> None:
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](_CONFIG, "cpu")
    frequencies = read_architecture(_CONFIG.to_dict()).inverse_frequencies()
    assert frequencies.tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_the_older_spelling_of_rope_is_read() -> None:
    config = _CONFIG.to_dict()
    scaling = config.pop("rope_parameters")
    theta = scaling.pop("rope_theta")
    older = read_architecture(config | {"rope_scaling": scaling, "rope_theta": theta})
    assert older == read_architecture(_CONFIG.to_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type = 'gpt2': the torch engine runs llama, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"hidden_size": None}, "'hidden_size'.* got NoneType"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope.*longrope"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'rope_type'='yarn': {'factor'}"),
        ({"rope_parameters": {"rope_type": "linear"}}, "'rope_type'='linear': {'factor'}"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_models_the_engine_cannot_run_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_architecture(_CONFIG.to_dict() | change)


def test_windowed_layers_are_those_that_transformers_names() -> None:
    config = make_model("qwen2-windowed").config.to_dict()
    found = read_architecture(config)
    assert (found.window, found.windowed) == (9, (False, True))
    whole = read_architecture(config | {"layer_types": None, "use_sliding_window": False})
    assert (whole.window, whole.windowed) == (0, (False, False))
    with pytest.raises(ModelError, match="sliding_window = None: layer_types names"):
        read_architecture(config | {"use_sliding_window": False})
    with pytest.raises(ModelError, match="layer_types = "):
        read_architecture(config | {"layer_types": ["full_attention", "linear_attention"]})


def test_the_shapes_of_an_architecture_are_those_of_the_model(tmp_path) -> None:
    for kind in KINDS:
        model = make_model(kind)
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        found = read_architecture(model.config)
        if found.tied:
            del shapes[HEAD]
        assert found.shapes() == shapes


def saved(tmp_path: Path, model: PreTrainedModel, **changes: object) -> Path:
    """Write a model and change its config.json afterwards, as a user would by hand."""
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return tmp_path


def largest_gap(directory: Path) -> float:
    """Return the largest gap between an engine's log-probs and transformers' in float64."""
    engine = TorchEngine.open(
        directory,
        options=TorchEngineOptions(max_length=200, rows=4),
        version=Version(0),
        threads=1,
    )
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    engine.add(replace(make_request(1, make_tokens(150, seed=1), max_tokens=40), stop=()))
    (done,) = [each for _ in iter(lambda: engine.busy, False) for each in engine.step()]
    expected = forced_logprobs(model, make_tokens(150, seed=1), done.tokens)
    return max(abs(a - b) for a, b in zip(done.logprobs, expected, strict=True))


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 500.0},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32},
        {"rope_parameters": LLAMA3, "original_max_position_embeddings": 32},
        {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 64}, "rope_theta": 99.0},
        {"rope_parameters": None, "rope_scaling": None, "rope_theta": 77.0},
        {"sliding_window": 8, "use_sliding_window": True},
        {"rms_norm_eps": 1e-2},
    ],
)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_whatever_is_added_to_a_config_the_engine_reads_it_as_transformers_does(
    kind: str, changes: dict, tmp_path: Path
) -> None:
    assert largest_gap(saved(tmp_path, make_model(kind), **changes)) < 5e-5


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def both_refuse(directory: Path, message: str) -> None:
    architecture = read_architecture(resolve_config(directory))
    with pytest.raises(ModelError, match=message):
        check_weights(directory, architecture)
    with pytest.raises(ModelError, match=message):
        TorchEngine.open(
            directory, options=TorchEngineOptions(max_length=64), version=Version(0), threads=1
        )
    with pytest.raises(ModelError, match=message):
        load_model(str(directory), dtype="float32", device="cpu")


def test_biases_that_no_config_announces_are_refused_by_engine_and_trainer(tmp_path: Path) -> None:
    saved(tmp_path, make_model("llama-bias"), attention_bias=False, mlp_bias=False)
    both_refuse(tmp_path, r"mlp\.down_proj\.bias is not a parameter.*set attention_bias")


def test_a_tied_model_with_two_different_matrices_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, make_model("qwen3"), tie_word_embeddings=True)
    both_refuse(tmp_path, r"tie_word_embeddings = true, but lm_head\.weight differs")


def test_a_tied_model_may_hold_its_matrix_twice(tmp_path: Path) -> None:
    saved(tmp_path, make_model("qwen3-tied"))
    rewrite(tmp_path, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    check_weights(tmp_path, read_architecture(resolve_config(tmp_path)))
    load_model(str(tmp_path), dtype="float32", device="cpu")
    assert largest_gap(tmp_path) < 5e-5


def test_announced_biases_that_the_file_lacks_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, make_model("llama"), attention_bias=True)
    architecture = read_architecture(resolve_config(tmp_path))
    with pytest.raises(ModelError, match=r"k_proj\.bias is missing from the weights"):
        check_weights(tmp_path, architecture)
    with pytest.raises(ModelError, match="missing_keys"):
        load_model(str(tmp_path), dtype="float32", device="cpu")


def test_an_adapter_beside_the_weights_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, make_model("llama"))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="merge it into the weights"):
        resolve_config(tmp_path)
    with pytest.raises(ModelError, match="merge it into the weights"):
        load_model(str(tmp_path), dtype="float32", device="cpu")
