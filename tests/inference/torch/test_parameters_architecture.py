"""What the torch engine reads of a config, and what it refuses."""

import pytest
from tiny_models import make_model
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rollart.errors import ConfigError, ModelError
from rollart.inference.torch.options import TorchEngineOptions
from rollart.inference.torch.parameters import read_architecture

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
        ({"use_sliding_window": True}, "full attention only"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "full attention only"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"hidden_size": None}, "hidden_size = None"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type = 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear"}}, r"rope_parameters\.factor is missing"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_models_the_engine_cannot_run_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_architecture(_CONFIG.to_dict() | change)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", ""),
        ("dtype", "float16"),
        ("rows", 0),
        ("max_length", 1),
        ("prefill_tokens", 0),
        ("cached_sessions", -1),
        ("threads", -1),
    ],
)
def test_options_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.torch\.{field} = "):
        TorchEngineOptions(**{field: value})
