"""A run's directory with a checkpoint that a command looks at before it loads torch."""

import json
from pathlib import Path

from rollart.checkpoints.save import BUFFER, FORMAT, STATE


def save_step(run: Path, step: int, notes: dict[str, object] | None = None) -> None:
    """Write what a run notes of itself at a step."""
    directory = run / "checkpoints" / f"step-{step:06d}"
    directory.mkdir(parents=True)
    (directory / BUFFER).write_text("")
    state = {"format": FORMAT, "scheduler": {"version": step}, "clock_s": 0.0, "notes": notes or {}}
    (directory / STATE).write_text(json.dumps(state))
