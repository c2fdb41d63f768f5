"""Live runs for benchmarks: the real controller, engine and trainer process, timed from the log."""

import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rollart.build.model import prepare_model
from rollart.build.training import train
from rollart.config import Config, load_config
from rollart.events import Launch, StepFinished, Train, TrajectoryFinished
from rollart.observe.log import Record, read_log
from rollart.replay import replay

ROOT = Path(__file__).resolve().parents[2]
_WARM_UP_STEPS = 2


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@cache
def warm_model() -> Path:
    """Return the quickstart's warm-started model, built on first use."""
    return prepare_model(load_config(ROOT / "examples" / "quickstart.toml"), say)


def lake_config(*overrides: str, **options: Any) -> Config:
    """Return a config of LatencyLake on the warm-started model."""
    base = load_config(
        ROOT / "examples" / "quickstart.toml",
        [
            "run.evaluate_episodes=0",
            "run.checkpoint_every=0",
            "run.samples=0",
            f"model.path={str(warm_model())!r}",
            *overrides,
        ],
    )
    lake = replace(
        base.tasks["lake"], env="benchmarks.live_runs.latency_lake:LatencyLake", options=options
    )
    return replace(base, tasks={"lake": lake})


@dataclass(frozen=True)
class Timed:
    """What a live run's log says."""

    records: tuple[Record, ...]
    proof: dict[str, Any]

    @property
    def trained_per_s(self) -> float:
        """Trained trajectories a second, after the first steps."""
        ends = [r.time_s for r in self.records if isinstance(r.event, StepFinished)]
        batches = [
            sum(len(group) for group in command.groups)
            for record in self.records
            for command in record.commands
            if isinstance(command, Train)
        ]
        first = min(_WARM_UP_STEPS, len(ends) - 2)
        return sum(batches[first + 1 :]) / (ends[-1] - ends[first])

    @property
    def rollouts_s(self) -> list[float]:
        """How long each batch rolled out, where batches do so one after another."""
        return list(_rollouts(self.records))


def _rollouts(records: tuple[Record, ...]) -> Iterator[float]:
    """Yield the time from the first launch of each batch to its last end."""
    started: float | None = None
    running = 0
    for record in records:
        if isinstance(record.event, TrajectoryFinished):
            running -= 1
            if running == 0 and started is not None:
                yield record.time_s - started
                started = None
        launches = sum(isinstance(command, Launch) for command in record.commands)
        if launches and started is None:
            started = record.time_s
        running += launches


def run_live(config: Config) -> Timed:
    """Run a config in a temporary directory, quietly, and read its log."""
    with tempfile.TemporaryDirectory(prefix="rollart-bench-") as directory:
        config = replace(config, run=replace(config.run, directory=directory + "/run"))
        with contextlib.redirect_stderr(io.StringIO()):
            code = train(config)
        assert code == 0
        parts = read_log(Path(directory) / "run" / "events.jsonl")
        return Timed(records=parts[0].records, proof=replay(Path(directory) / "run"))
