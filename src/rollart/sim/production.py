"""Production: the shape of the paper's production cluster, at any number of GPUs.

Batch, environments and GPUs grow together, train to generation 1:5. There are two shapes:

- `production`: turns from 1 to 48 with the paper's tail. Most tasks need one turn, a few so many
  that the most turns of a step are over 40 times the mean.
- `long`: turns from 1 to 48, evenly. Four times the work: the harder one to simulate.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from rollart.control.batching import Batching
from rollart.control.modes import mode_named
from rollart.control.redundancy import Redundancy
from rollart.control.rules import Rules
from rollart.control.staleness import Staleness
from rollart.events import Launch
from rollart.sim.cluster import Cluster, ClusterDurations, RolloutPool
from rollart.sim.hardware import gpu_named
from rollart.sim.latency import Latency
from rollart.sim.models import model_named
from rollart.sim.outages import OutageOptions
from rollart.sim.paper.setup import CONSTANTS
from rollart.sim.rewards import RewardOptions
from rollart.sim.workload import Script, SyntheticWorkload, TaskProfile
from rollart.sim.world import World
from rollart.types import GroupId, Json, SlotId, TrajectoryId

GROUP_SIZE = 8
ALPHA = 2
EXTRA_SHARE = 3 / 64
"""Redundant groups, as RollArt's set-up has them."""
GENERATION_SHARE = 5 / 6
CLUSTER_MTBF_S, CLUSTER_GPUS = 7 * 24 * 3600.0, 3000
"""One engine of 3,000 GPUs dies a week."""

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
class Shape:
    """What attempts are like and how many there are: a batch has 4.8 for each engine."""

    tasks: tuple[TaskProfile, ...]
    tp: int
    """GPUs of one engine."""
    attempts_per_gpu: int
    """Attempts of a batch per GPU; the paper's testbed has 512 on 128."""


SHAPES = {
    "production": Shape(tasks=(SINGLE, LONG), tp=1, attempts_per_gpu=4),
    "long": Shape(tasks=(LONG,), tp=2, attempts_per_gpu=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One size of one shape, and how much of it is simulated."""

    shape: str
    gpus: int
    steps: int
    seeds: int = 1

    @property
    def groups(self) -> int:
        """Groups of a batch."""
        return self.gpus * SHAPES[self.shape].attempts_per_gpu // GROUP_SIZE

    def workload(self, seed: int) -> SyntheticWorkload:
        """Return what its attempts would do."""
        return SyntheticWorkload(SHAPES[self.shape].tasks, seed=seed)

    def world(self, seed: int) -> World:
        """Return the run, ready to be simulated."""
        tp = SHAPES[self.shape].tp
        generation = round(self.gpus * GENERATION_SHARE / tp) * tp
        cluster = Cluster(
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
                redundancy=Redundancy(extra_groups=round(self.groups * EXTRA_SHARE)),
            ),
            workload=self.workload(seed),
            make_engines=cluster.make_engines,
            durations=ClusterDurations(cluster),
            slots=(ALPHA + 1) * attempts,
            rewards=RewardOptions(most=attempts),
            call_s=cluster.constants.rpc_s,
            outages=OutageOptions(
                mtbf_s=CLUSTER_MTBF_S * CLUSTER_GPUS * GENERATION_SHARE / tp, seed=seed
            ),
        )


def tails(trial: Trial) -> dict[str, Json]:
    """Return how far the attempts of one step lie apart."""
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


def _scripts(trial: Trial) -> Iterator[Script]:
    """Draw the attempts of the first step once more."""
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
