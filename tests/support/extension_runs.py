"""A tiny run that any extension can take part in: one step, a model of random weights."""

from pathlib import Path

import rollart

BASE = """
[run]
name = "base"
steps = 1
environments = 4
checkpoint_every = 0
evaluate_episodes = 0
samples = 1
mode = "sync"

[model]
path = "tiny:0.2M"
warm_start = false
cache = "cache"

[tasks.echo]
env = "echo:Echo"
max_turns = 2
max_tokens = 64

[sampling]
max_tokens = 3

[batching]
groups_per_step = 2
group_size = 2

[training]
threads = 1

[engine.torch]
threads = 1
"""


def train_with(directory: Path, *fragments: str) -> rollart.Run:
    """Train one step with fragments of a config on top of the base; files are in `directory`."""
    (directory / "layer0.toml").write_text(BASE)
    for number, fragment in enumerate(fragments, start=1):
        text = f'extends = "layer{number - 1}.toml"\n{fragment}'
        (directory / f"layer{number}.toml").write_text(text)
    return rollart.train(directory / f"layer{len(fragments)}.toml")
