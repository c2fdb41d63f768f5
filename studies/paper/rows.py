"""Rows: a figure of the paper, the simulator's, and how far they are apart.

Rows are computed by functions of `Runs`, which are called twice: first with a `SetupCollector`, to
learn which set-ups they need, then, after those are simulated, for their figures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, Protocol

from rollart.sim.outcome import SimOutcome, simulate
from rollart.types import Json
from studies.paper.setup import Setup
from studies.parallel import run_all

Kind = Literal["fitted", "predicted"]
Measure = Literal["ratio", "seconds", "share"]
_SKIP = 2
"""Steps at the start of a run that are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """One figure of the paper and its simulated value.

    Example:
        PaperRow(name="rollout", paper_low=1.4, paper_high=2.4, simulated=2.0).error == 0.0

    """

    name: str
    paper_low: float
    paper_high: float
    """Equal to `paper_low` where the paper gives one value."""
    simulated: float
    kind: Kind = "predicted"
    """Fitted: a constant was chosen to match this figure."""
    measure: Measure = "ratio"
    follows: bool = False
    """Whether it follows from earlier rows by arithmetic, without runs of its own."""

    @property
    def error(self) -> float:
        """How far outside the paper's band it is, relative to the nearer end."""
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
            "follows": self.follows,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperExtent:
    """How much is simulated for each figure.

    Example:
        PaperExtent(steps=6, seeds=5, rollouts=6)

    """

    steps: int
    """Most steps of a run."""
    seeds: int
    rollouts: int
    """Seeds of a set-up that rolls out a single batch."""

    def seeded(self, setup: Setup) -> tuple[Setup, ...]:
        """Return a set-up with every seed it is simulated with."""
        seeds = self.rollouts if setup.steps == 1 else self.seeds
        steps = min(setup.steps, self.steps)
        return tuple(replace(setup, seed=seed, steps=steps) for seed in range(seeds))


class Runs(Protocol):
    """Figures of set-ups, each a mean over seeds.

    Example:
        runs.throughput(testbed("8B", "rollart")) / runs.throughput(testbed("8B", "sync"))

    """

    def throughput(self, setup: Setup) -> float:
        """Return the trained tokens per second."""
        ...

    def step_s(self, setup: Setup) -> float:
        """Return the step time."""
        ...

    def rollout_s(self, setup: Setup) -> float:
        """Return the time until the first batch is complete."""
        ...

    def reward_use(self, setup: Setup) -> float:
        """Return the share of the time in which reward workers scored."""
        ...


class SetupCollector:
    """Records which set-ups rows need; every figure is 1."""

    def __init__(self) -> None:
        self._setups: dict[Setup, None] = {}

    @property
    def setups(self) -> tuple[Setup, ...]:
        """The set-ups that were needed, each once, in order."""
        return tuple(self._setups)

    def _note(self, setup: Setup) -> float:
        self._setups[setup] = None
        return 1.0

    throughput = step_s = rollout_s = reward_use = _note


class Simulated:
    """The figures of simulated set-ups."""

    def __init__(self, known: Mapping[Setup, Sequence[SimOutcome]]) -> None:
        self.known = known

    def throughput(self, setup: Setup) -> float:
        """Return the trained tokens per second."""
        return fmean(outcome.tokens_per_s for outcome in self.known[setup])

    def step_s(self, setup: Setup) -> float:
        """Return the step time."""
        return fmean(outcome.step_s for outcome in self.known[setup])

    def rollout_s(self, setup: Setup) -> float:
        """Return the time until the first batch is complete."""
        return fmean(outcome.steps[0].began_s for outcome in self.known[setup])

    def reward_use(self, setup: Setup) -> float:
        """Return the share of the time in which reward workers scored."""
        return fmean(outcome.reward_utilisation for outcome in self.known[setup])


def simulate_setups(
    setups: Sequence[Setup], extent: PaperExtent, *, jobs: int, progress: Callable[[str], None]
) -> Simulated:
    """Simulate every set-up with every seed."""
    seeded = [each for setup in setups for each in extent.seeded(setup)]
    outcomes = iter(run_all(outcome_of, seeded, jobs=jobs, progress=progress))
    return Simulated({setup: [next(outcomes) for _ in extent.seeded(setup)] for setup in setups})


def outcome_of(setup: Setup) -> SimOutcome:
    """Simulate one set-up, skipping its first steps unless it rolls out a single batch."""
    return simulate(setup.world, skip=0 if setup.steps == 1 else _SKIP)
