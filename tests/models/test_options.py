from pathlib import Path

import pytest

from rollart.errors import ConfigError
from rollart.models.options import ModelOptions


def test_a_tiny_model_is_known_by_its_path():
    assert ModelOptions().tiny_size == "0.3M"
    assert ModelOptions(path="models/mine").tiny_size is None


def test_only_a_warm_start_with_moves_that_are_not_random_needs_suggestions():
    assert ModelOptions().needs_suggestions
    assert not ModelOptions(warm_start=False).needs_suggestions
    assert not ModelOptions(warm_start_noise=1.0).needs_suggestions
    assert not ModelOptions(path="models/mine").needs_suggestions


def test_the_cache_is_named_by_option_then_variable_then_home(monkeypatch):
    monkeypatch.setenv("ROLLART_CACHE", "/somewhere")
    assert ModelOptions(cache="/here").cache_directory == Path("/here")
    assert ModelOptions().cache_directory == Path("/somewhere")
    monkeypatch.delenv("ROLLART_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert ModelOptions().cache_directory == Path("/home/someone/.cache/rollart")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert ModelOptions().cache_directory == Path("/caches/rollart")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"path": ""}, "model.path"),
        ({"path": "tiny:7B"}, "model.path"),
        ({"warm_start_noise": 1.1}, "model.warm_start_noise"),
        ({"warm_start_episodes": 0}, "model.warm_start_episodes"),
        ({"warm_start_epochs": 0}, "model.warm_start_epochs"),
        ({"warm_start_batch_tokens": 0}, "model.warm_start_batch_tokens"),
    ],
)
def test_wrong_values_name_the_field(options, field):
    with pytest.raises(ConfigError) as caught:
        ModelOptions(**options)
    assert caught.value.field == field
