"""The scale study: one shape of run from 64 to 10,000 GPUs, and the cost of simulating it.

Weak scaling: a perfect schedule trains the same tokens per second and GPU at every size. Batch,
environments and GPUs grow together, with five GPUs that generate for each that trains. What the
simulated cluster does depends on the seed alone; seconds and memory are those of this machine. An
event is an action on the simulator's loop; events that the scheduler handles are counted
separately. There are two shapes:

- `production`: turns from 1 to 48 with the paper's tail. Most tasks need one turn, a few so many
  that the most turns of a step are over 40 times the mean.
- `long`: turns from 1 to 48, evenly. Four times the work: the harder one to simulate.
"""

import gc
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from statistics import fmean, linear_regression

from rollart.clock import SystemClock
from rollart.config.simulation import ScoringOptions
from rollart.control.rules import Batching, Redundancy, Rules, mode_named
from rollart.control.staleness import Staleness
from rollart.events import Launch
from rollart.hardware.gpus import gpu_named
from rollart.hardware.models import model_named
from rollart.sim.cluster import ClusterDurations, RolloutPool, SimCluster
from rollart.sim.outcome import SimOutcome, simulate
from rollart.sim.workload import Latency, Script, SyntheticWorkload, TaskProfile
from rollart.sim.world import OutageOptions, World
from rollart.types import GroupId, Json, SlotId, TrajectoryId
from studies.paper.setup import CONSTANTS

GROUP_SIZE = 8
ALPHA = 2
EXTRA_SHARE = 3 / 64
"""Redundant groups as a share of a batch, as in RollArt's set-up."""
GENERATION_SHARE = 5 / 6
CLUSTER_MTBF_S, CLUSTER_GPUS = 7 * 24 * 3600.0, 3000
"""One engine of 3,000 GPUs fails each week."""

SINGLE = TaskProfile(
    name="single",
    weight=0.995,
    turns=(1, 1),
    opening_tokens=1500,
    samples=8000,
    samples_spread=0.35,
    task_spread=0.3,
    reset=Latency(kind="lognormal", mean_s=10.0, spread=0.5, tail_share=1e-4, tail_factor=30.0),
    step=Latency(kind="lognormal", mean_s=1.0, spread=0.8),
    score=Latency(kind="lognormal", mean_s=2.0, spread=0.5),
    max_tokens=131_072,
)
LONG = replace(SINGLE, name="long", weight=0.005, turns=(1, 48), reads=200, samples=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """What attempts are like and how many there are: a batch has 4.8 for each engine.

    Example:
        RunShape(tasks=(SINGLE, LONG), tp=1, attempts_per_gpu=4)

    """

    tasks: tuple[TaskProfile, ...]
    tp: int
    """GPUs of one engine."""
    attempts_per_gpu: int
    """Attempts of a batch per GPU; the paper's testbed has 512 on 128."""


SHAPES = {
    "production": RunShape(tasks=(SINGLE, LONG), tp=1, attempts_per_gpu=4),
    "long": RunShape(tasks=(LONG,), tp=2, attempts_per_gpu=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTrial:
    """One size of one shape, and how much of it is simulated.

    Example:
        ScaleTrial(shape="production", gpus=64, steps=5).groups == 32

    """

    shape: str
    gpus: int
    steps: int
    seeds: int = 1
    first_seed: int = 0

    @property
    def groups(self) -> int:
        """Groups of a batch."""
        return self.gpus * SHAPES[self.shape].attempts_per_gpu // GROUP_SIZE

    def workload(self, seed: int) -> SyntheticWorkload:
        """Return the scripts of its attempts."""
        return SyntheticWorkload(SHAPES[self.shape].tasks, seed=seed)

    def world(self, seed: int) -> World:
        """Return the run, ready to be simulated."""
        tp = SHAPES[self.shape].tp
        generation = round(self.gpus * GENERATION_SHARE / tp) * tp
        cluster = SimCluster(
            model=model_named("Qwen3-30B-A3B"),
            rollout=(RolloutPool(name="h20", gpu=gpu_named("H20"), gpus=generation, tp=tp),),
            train_gpu=gpu_named("H800"),
            train_gpus=self.gpus - generation,
            constants=CONSTANTS,
        )
        attempts = self.groups * GROUP_SIZE
        return World(
            rules=Rules(
                steps=self.steps,
                seed=seed,
                mode=mode_named("rollart"),
                batching=Batching(groups_per_step=self.groups, group_size=GROUP_SIZE),
                staleness=Staleness(alpha=ALPHA, at_bound="drop"),
                redundancy=Redundancy(
                    extra_groups=round(self.groups * EXTRA_SHARE), choice="finished"
                ),
            ),
            workload=self.workload(seed),
            make_engines=cluster.make_engines,
            durations=ClusterDurations(cluster),
            slots=(ALPHA + 1) * attempts,
            rewards=ScoringOptions(max_instances=attempts),
            call_s=cluster.constants.rpc_s,
            outages=OutageOptions(
                mtbf_s=CLUSTER_MTBF_S * CLUSTER_GPUS * GENERATION_SHARE / tp, seed=seed
            ),
        )


def tails(trial: ScaleTrial) -> dict[str, Json]:
    """Return how much the attempts of one step differ in length."""
    turns: list[int] = []
    responses: list[int] = []
    for script in _scripts(trial):
        turns.append(len(script.turns))
        responses.extend(turn.samples for turn in script.turns)
    return {
        "fewest_turns": min(turns),
        "most_turns": max(turns),
        "most_turns_over_mean": max(turns) / fmean(turns),
        "longest_response_over_mean": max(responses) / fmean(responses),
    }


def _scripts(trial: ScaleTrial) -> Iterator[Script]:
    """Draw the attempts of the first step again."""
    workload = trial.workload(0)
    for task in range(trial.groups):
        for member in range(GROUP_SIZE):
            yield workload.script(
                Launch(
                    id=TrajectoryId(0),
                    group=GroupId(task),
                    member=member,
                    attempt=0,
                    task=task,
                    slot=SlotId(0),
                    seed=0,
                )
            )


SIZES = (64, 256, 1024, 3000, 10_000)
_SEEDS = {64: 32, 256: 8, 1024: 5, 3000: 5, 10_000: 2}
"""Seeds of each size: more for a small cluster, because its steps vary more."""
BOUNDED = 3000
"""The size whose simulation time is bounded by a requirement."""
WARMING = ALPHA
"""Steps that fill the pipeline and are left out of the efficiency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResult:
    """What one trial showed, on average over its seeds.

    Example:
        result = measure(ScaleTrial(shape="production", gpus=64, steps=3))
        result.event_us  # processor time of one event

    """

    trial: ScaleTrial
    seconds: float
    """Wall time of one simulated step: that of a run over its steps."""
    cpu_s: float
    """Processor time of one simulated step."""
    events: float
    """Actions on the loop in one step."""
    handled: float
    """Events the scheduler handled in one step."""
    memory_mb: float
    """The peak memory of the process so far."""
    tokens_per_s_gpu: float
    """Trained tokens (prompt and response) per simulated second and GPU, pipeline full."""
    step_s: float
    """Simulated time of a step, pipeline full."""
    busy: float
    """Share of the simulated time in which engines were busy."""

    @property
    def event_us(self) -> float:
        """Processor time of one event."""
        return 1e6 * self.cpu_s / self.events

    @property
    def row(self) -> dict[str, Json]:
        """Its figures by name, as the study prints them."""
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


def run(
    *, quick: bool, progress: Callable[[str], None], seed: int | None = None
) -> dict[str, Json]:
    """Simulate every size; return the figures. `seed` is the first of all seeds."""
    if quick:
        sizes, steps, seeds = (64, 256, BOUNDED), 3, dict[int, int]()
    else:
        sizes, steps, seeds = SIZES, 5, _SEEDS
    trials = [
        ScaleTrial(shape="production", gpus=gpus, steps=steps, seeds=seeds.get(gpus, 1))
        for gpus in sizes
    ]
    trials += [
        ScaleTrial(shape="long", gpus=gpus, steps=1, seeds=max(1, seeds.get(gpus, 1) // 8))
        for gpus in sizes
    ]
    return study([replace(each, first_seed=seed or 0) for each in trials], progress=progress)


def study(
    trials: Sequence[ScaleTrial], *, progress: Callable[[str], None], bounded: int = BOUNDED
) -> dict[str, Json]:
    """Simulate trials, the smallest of each shape first; return the figures."""
    shapes: dict[str, list[ScaleResult]] = {}
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


def measure(trial: ScaleTrial) -> ScaleResult:
    """Simulate a trial with each of its seeds."""
    outcomes: list[SimOutcome] = []
    seconds = cpu_s = 0.0
    for seed in range(trial.first_seed, trial.first_seed + trial.seeds):
        gc.collect()
        clock, cpu_before = SystemClock(), _cpu_s()
        outcomes.append(simulate(trial.world(seed), skip=WARMING))
        seconds += clock.now()
        cpu_s += _cpu_s() - cpu_before
    steps = trial.steps * trial.seeds
    return ScaleResult(
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


def cost(sizes: Sequence[ScaleResult]) -> dict[str, Json]:
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
