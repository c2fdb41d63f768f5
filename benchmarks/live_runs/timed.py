"""Live runs for benchmarks: the real controller, engine and trainer process, timed from the log."""

import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rollart.config import Config, load_config
from rollart.events import (
    Launch,
    StepFinished,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.observe.log import Record, read_log
from rollart.observe.replay import replay
from rollart.pipelines.agentic import train
from rollart.pipelines.start_model import prepare_model

ROOT = Path(__file__).resolve().parents[2]


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

    def trained_per_s(self, *, warm_up: int, left_out: int) -> float:
        """Return trained trajectories a second without `warm_up` first and `left_out` last steps.

        What is in flight when the count begins was started before it, so as much must be in flight
        when it ends: leave out the steps for which nothing new is started.
        """
        ends = self._ends_s
        last = len(ends) - left_out
        return sum(self._batches[warm_up:last]) / (ends[last - 1] - ends[warm_up - 1])

    @property
    def trained_per_s_of_all(self) -> float:
        """Trained trajectories a second from the first launch to the last step's end."""
        began_s = next(r.time_s for r in self.records if _launches(r))
        return sum(self._batches) / (self._ends_s[-1] - began_s)

    def endings(self, slot: int) -> dict[str, int]:
        """Return how many attempts were launched in a slot, how many failed or were cancelled."""
        inside = {c.id for r in self.records for c in _launches(r) if c.slot == slot}
        ended = Counter(
            type(r.event)
            for r in self.records
            if isinstance(r.event, TrajectoryFailed | TrajectoryCancelled) and r.event.id in inside
        )
        return {
            "launches": len(inside),
            "failures": ended[TrajectoryFailed],
            "cancelled": ended[TrajectoryCancelled],
        }

    @property
    def rollouts_s(self) -> list[float]:
        """How long each batch rolled out, where batches do so one after another."""
        return list(_rollouts(self.records))

    @property
    def _ends_s(self) -> list[float]:
        return [r.time_s for r in self.records if isinstance(r.event, StepFinished)]

    @property
    def _batches(self) -> list[int]:
        return [
            sum(len(group) for group in command.groups)
            for record in self.records
            for command in record.commands
            if isinstance(command, Train)
        ]


def _launches(record: Record) -> list[Launch]:
    return [command for command in record.commands if isinstance(command, Launch)]


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
        launches = len(_launches(record))
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
