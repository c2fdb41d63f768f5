"""The runs that are recorded: real training, with marks where a checkpoint is promised.

    python -m benchmarks.durability_parts.recorded_run ROOT STEPS RANKS

Trains in ROOT/run with a checkpoint after every step; then goes back to the checkpoint before the
last one and trains two steps more. ROOT/marks gets a line when a checkpoint's moment is captured,
when it is reported as saved, and around the setting aside of later ones.
"""

import os
import sys
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from rollart.checkpoints.save import Checkpointer, checkpoints
from rollart.config import Config, load_config
from rollart.pipelines import run_record
from rollart.pipelines.agentic import train
from rollart.types import Json

CONFIG = """
[run]
name = "durability"
steps = 2
environments = 6
checkpoint_every = 1
keep_checkpoints = 2
evaluate_episodes = 0
samples = 1
mode = "rollart"

[model]
path = "tiny:0.2M"
warm_start = false

[tasks.letters]
env = "benchmarks.durability_parts.recorded_run:Letters"
max_turns = 2

[sampling]
max_tokens = 2

[batching]
groups_per_step = 2
group_size = 2

[training]
threads = 1

[engine.torch]
threads = 1
"""


class Letters:
    """Rewards that differ whatever a model says, so that every step has a gradient."""

    def reset(self, seed: int, _task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Start an episode."""
        return f"letters {seed % 10}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        """Reward an action by its letters."""
        return "more", sum(map(ord, action)) % 5 / 4, False, False, {}


def make_config(root: Path, *overrides: str) -> Config:
    """Return the config of the recorded runs; the model is kept outside of what is recorded."""
    file = root / "durability.toml"
    if not file.exists():
        file.write_text(CONFIG)
    return load_config(file, [f"run.directory={str(root / 'run')!r}", *overrides])


def mark(file: int, text: str) -> None:
    os.write(file, f"{text}\n".encode())


def watch(marks: int) -> None:
    """Mark what a run promises; nothing of how it writes is changed."""
    capture, write = Checkpointer._capture, Checkpointer._write
    set_aside = run_record.set_aside_later  # type: ignore[attr-defined]

    @wraps(capture)
    def captured(self: Any, scheduler: Any) -> Any:
        moment = capture(self, scheduler)
        mark(marks, f"captured {moment.version}")
        return moment

    @wraps(write)
    async def written(self: Any, moment: Any) -> Path:
        path = await write(self, moment)
        mark(marks, f"saved {moment.version}")
        return path

    @wraps(set_aside)
    def set_aside_later(checkpoint: Path) -> list[Path]:
        step = int(checkpoint.name.rpartition("-")[2])
        mark(marks, f"back {step}")
        aside = set_aside(checkpoint)
        mark(marks, f"backed {step}")
        return aside

    Checkpointer._capture = captured  # type: ignore[method-assign]
    Checkpointer._write = written  # type: ignore[method-assign]
    run_record.set_aside_later = set_aside_later  # type: ignore[attr-defined]


def main(root: Path, steps: int, ranks: int) -> None:
    watch(os.open(root / "marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    config = make_config(root, f"run.steps={steps}", f"training.ranks={ranks}")
    assert train(config) == 0
    earlier = checkpoints(root / "run" / "checkpoints")[-2]
    more = make_config(root, f"run.steps={steps + 1}", f"training.ranks={ranks}")
    assert train(more, resume=earlier) == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
