import json

import numpy
import pytest
import torch
from chat_templates import tiny_tokenizer
from safetensors.torch import save_file

from rollart.errors import ModelError
from rollart.models.files import load_config
from rollart.models.loader import load_weights, resolve
from rollart.models.tokenizer import load_tokenizer


def message_of(call, *arguments) -> str:
    with pytest.raises(ModelError) as caught:
        call(*arguments)
    return str(caught.value)


def test_a_local_directory_is_itself(tmp_path):
    assert resolve(str(tmp_path)) == tmp_path


def test_a_missing_directory_is_named(tmp_path):
    assert message_of(resolve, f"{tmp_path}/no") == (
        f"model.path = '{tmp_path}/no': no such directory"
    )
    assert "no such directory" in message_of(resolve, "./no")
    (tmp_path / "file").write_text("")
    assert "is a file" in message_of(resolve, f"{tmp_path}/file")


def test_a_hub_that_cannot_be_reached_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    message = message_of(resolve, "someone/some-model")
    assert message.startswith(
        "model.path = 'someone/some-model': no such directory, and the download from the model "
        "hub failed"
    )
    assert message.endswith("; give the path of a local directory, such as ./my-model")
    assert "neither a directory nor a hub name" in message_of(resolve, "not a name!")


def test_an_unknown_architecture_is_refused(tmp_path):
    assert message_of(load_config, tmp_path) == f"{tmp_path}: config.json is missing"
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    assert "architecture GPT2LMHeadModel is not supported" in message_of(load_config, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "architecture none named" in message_of(load_config, tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "config.json holds no JSON object" in message_of(load_config, tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config.json: no whole JSON: it breaks off" in message_of(load_config, tmp_path)


def test_weights_are_read_as_fp32_from_one_file_or_shards(tmp_path):
    save_file({"a": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = load_weights(tmp_path)
    assert {name: array.tolist() for name, array in weights.items()} == {
        "a": [1.0, 1.0],
        "b": [0.0, 0.0, 0.0],
    }
    assert {array.dtype for array in weights.values()} == {numpy.dtype("float32")}
    (tmp_path / "two.safetensors").unlink()
    assert "names two.safetensors, which does not exist" in message_of(load_weights, tmp_path)


def test_pickled_or_torn_weights_are_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    assert "pickled weights are not read" in message_of(load_weights, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    assert "cannot be read as safetensors" in message_of(load_weights, tmp_path)


def test_a_directory_without_a_usable_tokenizer_is_refused(tmp_path):
    assert "has no tokenizer (tokenizer.json" in message_of(load_tokenizer, tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).get_vocab() == tiny_tokenizer().get_vocab()
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "the tokenizer cannot be loaded" in message_of(load_tokenizer, tmp_path)
