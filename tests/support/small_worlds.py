"""Small clusters and workloads that the simulator's tests share."""

from rollart.config.simulation import Constants
from rollart.control.rules import Batching, Rules, mode_named
from rollart.hardware.gpus import gpu_named
from rollart.hardware.models import model_named
from rollart.sim.cluster import ClusterDurations, RolloutPool, SimCluster
from rollart.sim.costs import EngineCosts
from rollart.sim.workload import Latency, SyntheticWorkload, TaskProfile
from rollart.sim.world import World

LONG = TaskProfile(
    name="long",
    turns=(2, 8),
    reset=Latency(kind="lognormal", mean_s=10.0, spread=1.0),
    step=Latency(kind="normal", mean_s=2.0, spread=0.5),
)
SHORT = TaskProfile(
    name="short",
    turns=(1, 3),
    samples=800,
    task_spread=0.5,
    reset=Latency(mean_s=1.0),
    step=Latency(mean_s=0.5),
    score=Latency(mean_s=3.0),
)


def small_costs(**constants: float) -> EngineCosts:
    return EngineCosts(
        model=model_named("Qwen3-8B"),
        gpu=gpu_named("H800"),
        tp=1,
        constants=Constants(**constants),  # pyright: ignore[reportArgumentType]
    )


def small_cluster(**changes) -> SimCluster:
    pools = (
        RolloutPool(name="compute", gpu=gpu_named("H800"), gpus=2, tp=1),
        RolloutPool(name="bandwidth", gpu=gpu_named("H20"), gpus=2, tp=1),
    )
    given = {
        "model": model_named("Qwen3-8B"),
        "rollout": pools,
        "train_gpu": gpu_named("H800"),
        "train_gpus": 4,
    }
    return SimCluster(**(given | changes))


def small_world(
    mode: str = "rollart", *, seed: int = 0, cluster: SimCluster | None = None, **changes
) -> World:
    cluster = cluster or small_cluster()
    given = {
        "rules": Rules(
            steps=3,
            seed=seed,
            mode=mode_named(mode),
            batching=Batching(groups_per_step=4, group_size=4),
        ),
        "workload": SyntheticWorkload((LONG, SHORT), seed=seed),
        "make_engines": cluster.make_engines,
        "durations": ClusterDurations(cluster),
        "slots": 32,
        "call_s": 0.02,
    }
    return World(**(given | changes))
