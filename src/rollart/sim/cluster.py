"""Cluster: the hardware of a simulated run, as pools, and the engines made of it.

A pool is a number of GPUs of one kind. Rollout pools are divided into engines of `tp` GPUs each, or
into units of prefill and decode engines; one pool trains. A pool always holds at least one engine,
because a smaller one is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rollart.config.simulation import Constants
from rollart.errors import ConfigError
from rollart.hardware.gpus import Gpu, Link, link_named
from rollart.hardware.models import ModelShape
from rollart.sim.costs import USUAL_LINK, EngineCosts, LendCosts, TrainCosts, WeightCosts
from rollart.sim.disaggregated import DisaggregatedEngine
from rollart.sim.engine import SimEngine
from rollart.sim.fleet import FleetMember
from rollart.sim.loop import Loop
from rollart.types import EngineId, Version

TRAINING = "training"
"""The pool that lent engines belong to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """How a pool's engines divide prefill and decode.

    Example:
        Disaggregation(prefill=1, decode=3, decode_gpu=gpu_named("H20"))  # units "1P3D"

    """

    prefill: int
    """Prefill engines of one unit."""
    decode: int
    """Decode engines of one unit."""
    decode_gpu: Gpu | None = None
    """The GPUs that decode; None: the pool's own."""
    link: str = "rdma_400g"
    """The link over which keys and values move."""

    def __post_init__(self) -> None:
        for name in ("prefill", "decode"):
            if getattr(self, name) < 1:
                raise ConfigError(f"pools.{name}", getattr(self, name), "must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPool:
    """GPUs of one kind that generate.

    Example:
        RolloutPool(name="h800", gpu=gpu_named("H800"), gpus=64, tp=4).engines == 16

    """

    name: str
    gpu: Gpu
    gpus: int
    tp: int
    disaggregation: Disaggregation | None = None

    def __post_init__(self) -> None:
        if self.tp < 1 or self.tp > self.gpu.gpus_per_node:
            most = self.gpu.gpus_per_node
            raise ConfigError(f"pools.{self.name}.tp", self.tp, f"must be from 1 to {most}")
        if self.engines < 1:
            fix = f"must hold at least one engine of {self.tp} GPUs"
            raise ConfigError(f"pools.{self.name}.gpus", self.gpus, fix)

    @property
    def engines(self) -> int:
        """How many engines, or units of engines, the pool holds."""
        split = self.disaggregation
        each = 1 if split is None else split.prefill + split.decode
        return self.gpus // (self.tp * each)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCluster:
    """Hardware, model and constants, from which all durations follow.

    Example:
        pool = RolloutPool(name="h800", gpu=gpu_named("H800"), gpus=64, tp=4)
        SimCluster(model=model_named("Qwen3-32B"), rollout=(pool,),
                   train_gpu=gpu_named("H800"), train_gpus=32)

    """

    model: ModelShape
    rollout: tuple[RolloutPool, ...]
    train_gpu: Gpu
    train_gpus: int
    constants: Constants = field(default_factory=Constants)
    reuse_prefixes: bool = True
    """Whether engines keep keys and values of an episode between its turns."""
    blocking_weights: bool = False
    """Whether engines pause while weights are broadcast."""
    push_link: str = USUAL_LINK
    """The link from the trainer to the weight store beside the engines."""
    pull_link: str = USUAL_LINK
    """The link from that store to the engines."""
    lend_tp: int = 0
    """Tensor parallelism of engines on idle training GPUs; 0: none are lent."""
    state_gpus: int = 0
    """GPUs that share the training state; 0: `train_gpus`. Differs in a scaled-down copy."""

    def __post_init__(self) -> None:
        if self.train_gpus < 1:
            raise ConfigError("pools.training.gpus", self.train_gpus, "must be at least 1")

    @property
    def lending(self) -> LendCosts:
        """The cost of lending its training hardware."""
        return LendCosts(
            model=self.model,
            gpu=self.train_gpu,
            gpus=self.state_gpus or self.train_gpus,
            tp=self.lend_tp,
            pull_link=link_named(self.pull_link),
            constants=self.constants,
        )

    @property
    def weights(self) -> WeightCosts:
        """The cost of moving a version to its engines."""
        return WeightCosts(
            model=self.model,
            push_link=link_named(self.push_link),
            pull_link=link_named(self.pull_link),
            constants=self.constants,
            blocking=self.blocking_weights,
        )

    def make_engines(self, loop: Loop) -> Sequence[FleetMember]:
        """Return the engines of every pool."""
        members: list[FleetMember] = []
        for pool in self.rollout:
            costs = self._costs(pool.gpu, pool.tp)
            for number in range(pool.engines):
                id_ = EngineId(f"{pool.name}-{number}")
                split = pool.disaggregation
                engine = (
                    self._engine(id_, costs, loop)
                    if split is None
                    else self._unit(id_, pool, split, loop)
                )
                members.append(FleetMember(engine=engine, pool=pool.name))
        if self.lend_tp:
            held_gb = self.lending.held_gb
            costs = self._costs(self.train_gpu, self.lend_tp, held_gb=held_gb)
            for number in range(self.train_gpus // self.lend_tp):
                engine = self._engine(EngineId(f"{TRAINING}-{number}"), costs, loop)
                members.append(FleetMember(engine=engine, pool=TRAINING, lent=True))
        return members

    def _costs(self, gpu: Gpu, tp: int, *, held_gb: float = 0.0) -> EngineCosts:
        return EngineCosts(
            model=self.model, gpu=gpu, tp=tp, constants=self.constants, held_gb=held_gb
        )

    def _engine(self, id_: EngineId, costs: EngineCosts, loop: Loop) -> SimEngine:
        return SimEngine(id_, costs=costs, loop=loop, reuse_prefixes=self.reuse_prefixes)

    def _unit(
        self, id_: EngineId, pool: RolloutPool, split: Disaggregation, loop: Loop
    ) -> DisaggregatedEngine:
        reads = self._costs(pool.gpu, pool.tp)
        samples = self._costs(split.decode_gpu or pool.gpu, pool.tp)
        link: Link = link_named(split.link)
        return DisaggregatedEngine(
            id_,
            prefill=[
                self._engine(EngineId(f"{id_}/prefill-{number}"), reads, loop)
                for number in range(split.prefill)
            ],
            decode=[
                SimEngine(
                    EngineId(f"{id_}/decode-{number}"),
                    costs=samples,
                    loop=loop,
                    reuse_prefixes=False,
                )
                for number in range(split.decode)
            ],
            loop=loop,
            transfer_token_s=self.model.kv_bytes_per_token / (link.gb_s * 1e9),
        )


class ClusterDurations:
    """Durations computed from a cluster's hardware."""

    def __init__(self, cluster: SimCluster) -> None:
        self._train = TrainCosts(
            model=cluster.model,
            gpu=cluster.train_gpu,
            gpus=cluster.train_gpus,
            constants=cluster.constants,
        )
        self._publish_s, self._update_s = cluster.weights.publish_s, cluster.weights.update_s
        self._lending = cluster.lending

    def train_s(self, tokens: int, *, version: Version) -> float:
        """Return the time of an optimizer step on `tokens` tokens."""
        del version
        return self._train.step_s(tokens)

    def publish_s(self, version: Version) -> float:
        """Return the time until engines may load a new version."""
        del version
        return self._publish_s

    def update_s(self, version: Version, *, engine: EngineId) -> float:
        """Return how long an engine pauses to load it."""
        del version, engine
        return self._update_s

    def lend_s(self) -> float:
        """Return the time to turn training hardware into an engine."""
        return self._lending.lend_s

    def recall_s(self) -> float:
        """Return the time to turn it back."""
        return self._lending.recall_s
