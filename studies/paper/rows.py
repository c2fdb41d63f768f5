"""Rows: a figure of the paper, the simulator's, and how far they are apart.

Rows are computed by functions of `Runs`, which are called several times: first with a
`SetupCollector`, to learn which set-ups they need, then, after those are simulated, for their
figures, and once more without each of the seeds, for their intervals.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean
from typing import Literal, NamedTuple, Protocol

from rollart.sim.outcome import simulate
from rollart.types import Json
from studies.paper.setup import Setup
from studies.parallel import run_all

Kind = Literal["fitted", "predicted"]
Measure = Literal["ratio", "seconds", "share"]
_SKIP = 2
"""Steps at the start of a run that are left out."""
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


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
        PaperExtent(steps=6, seeds=5, rollouts=24, first=1000)

    """

    steps: int
    """Most steps of a run."""
    seeds: int
    rollouts: int
    """Seeds of a set-up that rolls out a single batch."""
    first: int = 0
    """The first seed of both."""

    def seeded(self, setup: Setup) -> tuple[Setup, ...]:
        """Return a set-up with every seed it is simulated with."""
        seeds = self.rollouts if setup.is_rollout else self.seeds
        steps = min(setup.steps, self.steps)
        return tuple(replace(setup, seed=self.first + n, steps=steps) for n in range(seeds))


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


class RunFigures(NamedTuple):
    """What one run of a set-up showed.

    Example:
        RunFigures(tokens_per_s=17455.8, step_s=308.9, rollout_s=299.8, reward_use=0.27)

    """

    tokens_per_s: float
    step_s: float
    rollout_s: float
    reward_use: float


class Simulated:
    """The figures of simulated set-ups."""

    def __init__(self, known: Mapping[Setup, Sequence[RunFigures]]) -> None:
        self.known = known

    def without(self, number: int, *, is_rollout: bool) -> "Simulated":
        """Return the figures without one of the seeds: of rollouts, or of all other runs."""
        return Simulated(
            {
                setup: [*runs[:number], *runs[number + 1 :]]
                if setup.is_rollout == is_rollout
                else runs
                for setup, runs in self.known.items()
            }
        )

    def seeds(self, *, is_rollout: bool) -> int:
        """Return how many seeds rollouts, or all other runs, have."""
        counts = (len(runs) for setup, runs in self.known.items() if setup.is_rollout == is_rollout)
        return min(counts, default=0)

    def throughput(self, setup: Setup) -> float:
        """Return the trained tokens per second."""
        return fmean(run.tokens_per_s for run in self.known[setup])

    def step_s(self, setup: Setup) -> float:
        """Return the step time."""
        return fmean(run.step_s for run in self.known[setup])

    def rollout_s(self, setup: Setup) -> float:
        """Return the time until the first batch is complete."""
        return fmean(run.rollout_s for run in self.known[setup])

    def reward_use(self, setup: Setup) -> float:
        """Return the share of the time in which reward workers scored."""
        return fmean(run.reward_use for run in self.known[setup])


def simulate_setups(
    setups: Sequence[Setup], extent: PaperExtent, *, jobs: int, progress: Callable[[str], None]
) -> Simulated:
    """Simulate every set-up with every seed."""
    seeded = [each for setup in setups for each in extent.seeded(setup)]
    figures = iter(run_all(figures_of, seeded, jobs=jobs, progress=progress))
    return Simulated({setup: [next(figures) for _ in extent.seeded(setup)] for setup in setups})


def figures_of(setup: Setup) -> RunFigures:
    """Simulate one set-up, skipping its first steps unless it rolls out a single batch."""
    outcome = simulate(setup.world, skip=0 if setup.is_rollout else _SKIP)
    return RunFigures(
        tokens_per_s=outcome.tokens_per_s,
        step_s=outcome.step_s,
        rollout_s=outcome.steps[0].began_s,
        reward_use=outcome.reward_utilisation,
    )


def student_t(freedom: int) -> float:
    """Return Student's t of a two-sided 95 % interval, by degrees of freedom.

    Example:
        >>> [student_t(4), round(student_t(23), 3)]
        [2.776, 2.069]

    """
    return _T_95[freedom - 1] if freedom <= len(_T_95) else 1.96 + 2.5 / freedom


def intervals(
    rows: Callable[[Runs], Iterable[PaperRow]], runs: Simulated
) -> dict[str, tuple[float, float] | None]:
    """Return the 95 % interval of every row by name; None where there is only one seed.

    By the jackknife: how much a figure moves when each seed in turn is left out. That holds for
    ratios of means and for the best of several alike.
    """
    whole = {row.name: row.simulated for row in rows(runs)}
    halves = dict.fromkeys(whole, 0.0)
    for is_rollout in (False, True):
        count = runs.seeds(is_rollout=is_rollout)
        if count < 2:
            return dict.fromkeys(whole, None)
        left = [
            {row.name: row.simulated for row in rows(runs.without(n, is_rollout=is_rollout))}
            for n in range(count)
        ]
        for name in whole:
            values = [each[name] for each in left]
            mean = fmean(values)
            variance = (count - 1) / count * sum((value - mean) ** 2 for value in values)
            # A row is made of rollouts or of other runs, so one of the two adds nothing.
            halves[name] += student_t(count - 1) * sqrt(variance)
    return {name: (value - halves[name], value + halves[name]) for name, value in whole.items()}
