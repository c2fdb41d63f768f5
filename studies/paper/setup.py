"""The paper's set-up: its testbed, its five schedules; its five tasks are the simulator's.

The paper gives turns per task, GPUs, batch and group sizes. Tokens per turn, latencies and the
number of environments it does not give; they are chosen here (docs/simulator.md says by what) and
are the same in every experiment that does not say otherwise.
"""

from dataclasses import dataclass, replace

from rollart.config.simulation import Constants, ScoringOptions
from rollart.control.routing import Routing
from rollart.control.rules import MODES, Batching, Mode, Redundancy, Rules, Syncing
from rollart.control.staleness import Staleness
from rollart.hardware.gpus import Gpu, gpu_named
from rollart.hardware.models import ModelShape, model_named
from rollart.sim.cluster import ClusterDurations, Disaggregation, RolloutPool, SimCluster
from rollart.sim.from_config import TASKS, lognormal
from rollart.sim.workload import SyntheticWorkload, TaskProfile
from rollart.sim.world import World

H800: Gpu = gpu_named("H800")
H20: Gpu = gpu_named("H20")
COMPUTE, BANDWIDTH = "h800", "h20"
"""The two rollout pools."""
SIZES = ("8B", "14B", "32B")
TP = {"8B": 1, "14B": 2, "32B": 4, "30B-A3B": 4}
"""GPUs of one engine, by model."""
ENVIRONMENTS = 256
"""Episodes that run at once. Lock-step needs one for every attempt of its batch."""
GROUPS, GROUP_SIZE = 64, 8
CONSTANTS = Constants(push_gb_s=0.5)
"""Those of the cost model, with the paper's weight store: it takes in less than its link brings."""
REDUNDANT_GROUPS = 3
"""Groups that RollArt starts beyond a batch of 64: its redundant environments."""


PRODUCTION = TaskProfile(
    name="agent",
    turns=(1, 48),
    opening_tokens=2000,
    reads=400,
    samples=300,
    samples_spread=0.9,
    reset=lognormal(10.0, 0.8),
    step=lognormal(1.0, 0.8),
)
"""What the paper's production job was like, as one task."""
AFFINITY = {
    "swe": (COMPUTE,),
    "webshop": (COMPUTE,),
    "frozenlake": (COMPUTE,),
    "math": (BANDWIDTH,),
    "game": (BANDWIDTH,),
}
"""Prefill-heavy tasks to compute GPUs, decode-heavy ones to bandwidth GPUs."""


def shape(size: str) -> ModelShape:
    """Return a Qwen3 model by its size."""
    return model_named(f"Qwen3-{size}")


def tasks(size: str) -> tuple[TaskProfile, ...]:
    """Return the mix a model is trained on: SWE only for the largest."""
    return TASKS if size == "32B" else TASKS[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run of an experiment.

    Example:
        Setup(size="14B", mode="one_off", compute=96, train=32).gpus == 128

    """

    size: str = "8B"
    mode: str = "rollart"
    compute: int = 96
    """H800 that roll out."""
    bandwidth: int = 0
    """H20 that roll out."""
    train: int = 32
    """H800 that train."""
    tasks: tuple[TaskProfile, ...] = ()
    """Empty takes the model's mix."""
    alpha: int = 1
    extra_groups: int | None = None
    """Groups started beyond the batch; None: RollArt's own number, none in other modes."""
    extra_members: int = 0
    groups: int = GROUPS
    environments: int = 0
    """0 takes what the mode has."""
    steps: int = 8
    seed: int = 0
    blocking: bool | None = None
    """Whether weights are broadcast while engines stand still; None: all but rollart do."""
    reuse_prefixes: bool = False
    lockstep: bool | None = None
    """Whether attempts take their turns together; None: as the mode has it."""
    split: tuple[int, int] | None = None
    """Prefill and decode engines of a unit; those that decode are H20. None: engines do both."""
    constants: Constants = CONSTANTS
    rewards: ScoringOptions | None = None

    def __str__(self) -> str:
        return f"Qwen3-{self.size} {self.mode} on {self.gpus} GPUs, seed {self.seed}"

    @property
    def schedule(self) -> Mode:
        """The mode as a row of decisions."""
        mode = MODES[self.mode]
        return mode if self.lockstep is None else replace(mode, lockstep=self.lockstep)

    @property
    def is_rollout(self) -> bool:
        """Whether it rolls out a single batch."""
        return self.steps == 1

    @property
    def gpus(self) -> int:
        """All its GPUs."""
        return self.train + self.compute + self.bandwidth

    @property
    def cluster(self) -> SimCluster:
        """The hardware."""
        parts = None
        if self.split is not None:
            prefill, decode = self.split
            parts = Disaggregation(prefill=prefill, decode=decode, decode_gpu=H20)
        pools = [
            RolloutPool(name=name, gpu=gpu, gpus=gpus, tp=TP[self.size], disaggregation=parts)
            for name, gpu, gpus in (
                (COMPUTE, H800, self.compute),
                (BANDWIDTH, H20, self.bandwidth),
            )
            if gpus
        ]
        return SimCluster(
            model=shape(self.size),
            rollout=tuple(pools),
            train_gpu=H800,
            train_gpus=self.train,
            constants=self.constants,
            reuse_prefixes=self.reuse_prefixes,
            blocking_weights=self.mode != "rollart" if self.blocking is None else self.blocking,
        )

    @property
    def rules(self) -> Rules:
        """The schedule, with the paper's counting of staleness and order of weight updates."""
        return Rules(
            steps=self.steps,
            seed=self.seed,
            mode=self.schedule,
            batching=Batching(groups_per_step=self.groups, group_size=GROUP_SIZE),
            staleness=Staleness(
                alpha=self.alpha, counting="serving", window="ahead", at_bound="drop"
            ),
            redundancy=Redundancy(
                extra_groups=self._extra,
                extra_members=self.extra_members,
                choice="finished",
            ),
            syncing=Syncing(when="batch"),
        )

    @property
    def world(self) -> World:
        """The run, ready to be simulated."""
        cluster = self.cluster
        has_affinity = self.schedule.affinity and self.compute and self.bandwidth
        attempts = self.groups * GROUP_SIZE
        environments = attempts if self.schedule.lockstep else min(ENVIRONMENTS, attempts)
        return World(
            rules=self.rules,
            workload=SyntheticWorkload(self.tasks or tasks(self.size), seed=self.seed),
            make_engines=cluster.make_engines,
            durations=ClusterDurations(cluster),
            slots=self.environments or environments,
            routing=Routing(affinity=AFFINITY if has_affinity else {}),
            rewards=self.rewards or self._rewards,
            call_s=cluster.constants.rpc_s,
        )

    @property
    def _extra(self) -> int:
        if self.extra_groups is not None:
            return self.extra_groups
        return REDUNDANT_GROUPS if self.mode == "rollart" else 0

    @property
    def _rewards(self) -> ScoringOptions:
        """Local reward GPUs for the synchronous schedule, functions for the others."""
        return (
            ScoringOptions(kind="dedicated", max_instances=8)
            if self.mode == "sync"
            else ScoringOptions()
        )


def testbed(size: str, mode: str) -> Setup:
    """Return the paper's main set-up: 128 H800, of which RollArt swaps 32 for as many H20."""
    setup = Setup(size=size, mode=mode)
    return replace(setup, compute=64, bandwidth=32) if mode == "rollart" else setup
