"""Rows: a figure of the paper beside the simulator's, and how far they are apart."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from rollart.sim.outcome import Outcome, simulate
from rollart.sim.paper.setup import Setup
from rollart.types import Json

Kind = Literal["fitted", "predicted"]
Measure = Literal["ratio", "seconds", "share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    name: str
    paper_low: float
    paper_high: float
    """Equal to `paper_low` where the paper gives one value."""
    simulated: float
    kind: Kind = "predicted"
    """Whether a constant was chosen to meet this figure."""
    measure: Measure = "ratio"

    @property
    def error(self) -> float:
        """How far outside the paper's band it lies, relative to the nearer end."""
        if self.simulated < self.paper_low:
            return 1 - self.simulated / self.paper_low
        return max(0.0, self.simulated / self.paper_high - 1)

    @property
    def encoded(self) -> dict[str, Json]:
        """The row as the report prints it."""
        return {
            "name": self.name,
            "paper_low": self.paper_low,
            "paper_high": self.paper_high,
            "simulated": round(self.simulated, 4),
            "kind": self.kind,
            "measure": self.measure,
            "error": round(self.error, 4),
        }


class Runs:
    """Simulates set-ups, each once, however many rows need it; figures are means over seeds."""

    def __init__(self, progress: Callable[[str], None], *, steps: int, seeds: int) -> None:
        self._progress = progress
        self._known: dict[Setup, tuple[Outcome, ...]] = {}
        self.steps = steps
        self.seeds = seeds

    def outcomes(self, setup: Setup) -> tuple[Outcome, ...]:
        """Return the figures of a set-up, for every seed."""
        if setup not in self._known:
            gpus = setup.train + setup.compute + setup.bandwidth
            self._progress(f"Qwen3-{setup.size} {setup.mode} on {gpus} GPUs")
            self._known[setup] = tuple(
                simulate(replace(setup, seed=seed).world, skip=2) for seed in range(self.seeds)
            )
        return self._known[setup]

    def throughput(self, setup: Setup) -> float:
        """Return the trained tokens per second of a set-up."""
        return fmean(outcome.tokens_per_s for outcome in self.outcomes(setup))

    def step_s(self, setup: Setup) -> float:
        """Return the step time of a set-up."""
        return fmean(outcome.step_s for outcome in self.outcomes(setup))
