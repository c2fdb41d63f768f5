"""Configs of real but tiny runs; the model is built once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rollart.config import Config, load_config

CONFIG = """
[run]
name = "small"
steps = 2
environments = 3
checkpoint_every = 0
evaluate_episodes = 0
samples = 1
mode = "sync"

[model]
path = "tiny:0.2M"
warm_start = false

[tasks.letters]
env = "letter_env:Letters"
max_turns = 3
max_tokens = 64

[sampling]
max_tokens = 4

[batching]
groups_per_step = 2
group_size = 4

[training]
learning_rate = 1e-2
threads = 1

[engine.torch]
threads = 1

[retry]
backoff_s = 0.01
backoff_max_s = 0.02
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Where the runs of a test module go."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def small(runs) -> Callable[..., Config]:
    """Return a maker of configs; the run `name` goes to `runs / name`."""
    file = runs / "small.toml"
    file.write_text(CONFIG)

    def make(name: str, *overrides: str) -> Config:
        here = [f"run.directory={str(runs / name)!r}", f"model.cache={str(runs / 'cache')!r}"]
        return load_config(file, [*here, *overrides])

    return make
