"""Configs of real but tiny runs; the model is built once."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollart.config import Config, load_config

sys.path.insert(0, str(Path(__file__).parent))

CONFIG = """
[run]
name = "small"
steps = 2
environments = 4
checkpoint_every = 0
evaluate_episodes = 0
samples = 1
mode = "sync"

[model]
path = "tiny:0.2M"
warm_start = false

[tasks.letters]
env = "letter_env:Letters"
max_turns = 2
max_tokens = 64

[sampling]
max_tokens = 4

[batching]
groups_per_step = 2
group_size = 2

[training]
learning_rate = 1e-2
threads = 1

[engine.torch]
threads = 1

[retry]
backoff_s = 0.01
backoff_max_s = 0.02
"""


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def small(tmp_path, model_cache, monkeypatch) -> Callable[..., Config]:
    """Return a maker of configs; the run goes to `tmp_path / name`."""
    monkeypatch.setenv("ROLLART_CACHE", str(model_cache))
    file = tmp_path / "small.toml"
    file.write_text(CONFIG)

    def make(name: str, *overrides: str) -> Config:
        return load_config(file, [f"run.directory={str(tmp_path / name)!r}", *overrides])

    return make
