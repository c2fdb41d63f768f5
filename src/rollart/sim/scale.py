"""The scale study: one shape of run from 64 to 10,000 GPUs, and what simulating it costs.

Weak scaling: a perfect schedule trains the same tokens per second and GPU at every size. What the
simulated cluster does depends on the seed alone; seconds and memory are this machine's.

An event here is an action on the simulator's loop: a request that ends, a step of an environment.
Those the scheduler takes in, launches' ends, weights, steps, are counted apart.
"""

import gc
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from statistics import fmean, linear_regression

from rollart.clock import SystemClock
from rollart.sim.outcome import Outcome, simulate
from rollart.sim.production import ALPHA, GROUP_SIZE, Trial, tails
from rollart.types import Json

SIZES = (64, 256, 1024, 3000, 10_000)
_SEEDS = {64: 32, 256: 8, 1024: 5, 3000: 5, 10_000: 2}
"""Seeds of each size: of a small cluster more, for its steps differ more."""
BOUNDED = 3000
"""The size whose seconds are bounded."""
WARMING = ALPHA
"""Steps that fill the pipeline: efficiency leaves them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What one trial showed, on average over its seeds."""

    trial: Trial
    seconds: float
    """Wall time of one simulated step: a whole run's over its steps."""
    cpu_s: float
    """Processor time of one simulated step."""
    events: float
    """Actions on the loop in one step."""
    handled: float
    """Events the scheduler took in, in one step."""
    memory_mb: float
    """The most memory the process has had so far."""
    tokens_per_s_gpu: float
    """Trained tokens, read and sampled, per simulated second and GPU, pipeline full."""
    step_s: float
    """Simulated time of a step, pipeline full."""
    busy: float
    """Share of the simulated time in which engines worked."""

    @property
    def event_us(self) -> float:
        """Processor time of one event."""
        return 1e6 * self.cpu_s / self.events

    @property
    def row(self) -> dict[str, Json]:
        """Its figures under their names."""
        return {
            "shape": self.trial.shape,
            "gpus": self.trial.gpus,
            "attempts_per_step": self.trial.groups * GROUP_SIZE,
            "events_per_step": round(self.events),
            "scheduler_events_per_step": round(self.handled),
            "seconds_per_step": self.seconds,
            "cpu_s_per_step": self.cpu_s,
            "us_per_event": self.event_us,
            "peak_rss_mb": self.memory_mb,
            "simulated_step_s": self.step_s,
            "tokens_per_s_gpu": self.tokens_per_s_gpu,
            "engines_busy": self.busy,
        }


def run(*, quick: bool, progress: Callable[[str], None]) -> dict[str, Json]:
    """Simulate every size; return the figures."""
    if quick:
        sizes, steps, seeds = (64, 256, BOUNDED), 3, dict[int, int]()
    else:
        sizes, steps, seeds = SIZES, 5, _SEEDS
    trials = [
        Trial(shape="production", gpus=gpus, steps=steps, seeds=seeds.get(gpus, 1))
        for gpus in sizes
    ]
    trials += [
        Trial(shape="long", gpus=gpus, steps=1, seeds=max(1, seeds.get(gpus, 1) // 8))
        for gpus in sizes
    ]
    return study(trials, progress=progress)


def study(
    trials: Sequence[Trial], *, progress: Callable[[str], None], bounded: int = BOUNDED
) -> dict[str, Json]:
    """Simulate trials, the smallest of each shape first; return the figures."""
    shapes: dict[str, list[Size]] = {}
    for trial in trials:
        progress(f"{trial.shape}: {trial.gpus:,} GPUs, {trial.steps} steps, {trial.seeds} seeds")
        shapes.setdefault(trial.shape, []).append(measure(trial))
    sizes = [size for each in shapes.values() for size in each]
    at_bound = {size.trial.shape: size for size in sizes if size.trial.gpus == bounded}
    production, watched = shapes["production"], at_bound["production"]
    base = production[0].tokens_per_s_gpu
    return {
        f"seconds_{bounded}": watched.seconds,
        "efficiency": {str(size.trial.gpus): size.tokens_per_s_gpu / base for size in production},
        "events_per_s": watched.events / watched.seconds,
        "scheduler_events_per_s": watched.handled / watched.seconds,
        "events": "actions on the simulator's loop; the scheduler's events are counted apart",
        f"cpu_s_{bounded}": {shape: size.cpu_s for shape, size in at_bound.items()},
        "peak_rss_mb": max(size.memory_mb for size in sizes),
        "cost": {shape: cost(each) for shape, each in shapes.items() if len(each) > 1},
        "tails": {shape: tails(size.trial) for shape, size in at_bound.items()},
        "rows": [size.row for size in sizes],
    }


def measure(trial: Trial) -> Size:
    """Simulate a trial with each of its seeds."""
    outcomes: list[Outcome] = []
    seconds = cpu_s = 0.0
    for seed in range(trial.seeds):
        gc.collect()
        clock, cpu_before = SystemClock(), _cpu_s()
        outcomes.append(simulate(trial.world(seed), skip=WARMING))
        seconds += clock.now()
        cpu_s += _cpu_s() - cpu_before
    steps = trial.steps * trial.seeds
    return Size(
        trial=trial,
        seconds=seconds / steps,
        cpu_s=cpu_s / steps,
        events=sum(outcome.actions for outcome in outcomes) / steps,
        handled=sum(outcome.events for outcome in outcomes) / steps,
        memory_mb=_peak_mb(),
        tokens_per_s_gpu=fmean(outcome.tokens_per_s for outcome in outcomes) / trial.gpus,
        step_s=fmean(outcome.step_s for outcome in outcomes),
        busy=fmean(share for each in outcomes for share in each.utilisation.values()),
    )


def cost(sizes: Sequence[Size]) -> dict[str, Json]:
    """Return how the cost of an event grows with the number of events of a step.

    Logarithmic growth is a straight line over the logarithm: each doubling adds the same.
    """
    doublings = [log(size.events, 2) for size in sizes]
    costs = [size.event_us for size in sizes]
    slope, intercept = linear_regression(doublings, costs)
    points = list(zip(doublings, costs, strict=True))
    return {
        "us_per_event": {str(size.trial.gpus): size.event_us for size in sizes},
        "fit_us_per_doubling": slope,
        "fit_us_at_one_event": intercept,
        "us_per_doubling": [(c1 - c0) / (d1 - d0) for (d0, c0), (d1, c1) in pairwise(points)],
        "growth": costs[-1] / costs[0],
        "growth_of_log_events": doublings[-1] / doublings[0],
    }


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _peak_mb() -> float:
    """Return the peak of the resident set, which macOS counts in bytes and others in KiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
