"""Pools and profiles: the hardware a run has, and what is known of its tasks before it runs.

Both are what the simulator and the planner read. Runs read the pools too: on this machine those of
CPUs become engines, on a cluster every pool is a share of the nodes that have its resource and
labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rollart.config.keys import named
from rollart.control.placement import CPU, PoolCapacity
from rollart.errors import ConfigError
from rollart.hardware.gpus import Gpu, gpu_named, link_named
from rollart.sim.distributions import Kind

GPU = "GPU"
"""What Ray calls every device, of whatever class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Hardware of one kind and what it is for."""

    hardware: str = field(metadata=named("class", meant=("gpu", "hardware", "type", "kind")))
    """The hardware class, such as "H800"; "CPU" is that of machines without GPUs."""
    count: int
    """How many there are; of CPUs, how many engines or workers."""
    role: Literal["any", "train", "rollout", "environments"] = "any"
    """What they do; "any" is up to the planner, or to [affinity]."""
    tp: int = 0
    """GPUs of one engine; 0 is up to the planner."""
    prefill: int = 0
    """Prefill engines of one unit; 0: engines read and sample, unless the planner finds better."""
    decode: int = 0
    """Decode engines of one unit; given together with prefill."""
    price: float = 0.0
    """Price of one GPU hour in any currency; 0 takes the table's, relative to an H20."""
    link: str = ""
    """The link of new weights to a store and on to it, such as "rdma_400g"; empty: "tcp_200g"."""
    resource: str = ""
    """The Ray resource one of them is; empty: the class's name, of CPUs Ray's own CPUs."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Ray labels a node must have to belong to the pool."""
    memory_gb: float = 0.0
    """Memory of one of them in 10^9 bytes; 0 takes the hardware table's."""
    cpus: float = 0.0
    """CPU cores an engine or worker of it asks for; 0: none, on CPUs ray.engine_cpus."""

    def __post_init__(self) -> None:
        gpu = gpu_named(self.hardware, field="pools.class")
        if self.link:
            link_named(self.link, field="pools.link")
        if self.count < 1:
            raise ConfigError("pools.count", self.count, "must be at least 1")
        if not 0 <= self.tp <= gpu.gpus_per_node:
            fix = f"must be from 0 (up to the planner) to {gpu.gpus_per_node}, a node's GPUs"
            raise ConfigError("pools.tp", self.tp, fix)
        for name in ("prefill", "decode"):
            if getattr(self, name) < 0:
                raise ConfigError(f"pools.{name}", getattr(self, name), "must be at least 0")
        if (self.prefill == 0) != (self.decode == 0):
            fix = "give both prefill and decode, or neither"
            raise ConfigError("pools.prefill", self.prefill, fix)
        for name in ("price", "memory_gb", "cpus"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"pools.{name}", getattr(self, name), "must be at least 0")
        if self.resource == GPU and not self.labels:
            fix = "every GPU node has it: leave it out, or say with labels which nodes are meant"
            raise ConfigError("pools.resource", self.resource, fix)

    @property
    def gpu(self) -> Gpu:
        """What the hardware table says of its class."""
        return gpu_named(self.hardware)

    @property
    def is_cpu(self) -> bool:
        """Whether it has no devices."""
        return self.hardware == CPU

    @property
    def memory_gb_each(self) -> float:
        """Memory of one of them."""
        return self.memory_gb or self.gpu.memory_gb

    def capacity(self, name: str) -> PoolCapacity:
        """Return the pool as workers are bound to it."""
        return PoolCapacity(
            name=name,
            hardware=self.hardware,
            units=self.count,
            memory_gb_per_unit=self.memory_gb_each,
            units_per_node=self.gpu.gpus_per_node,
            resource=self.resource,
            role=self.role,
        )

    def request(self, *, units: int, engine_cpus: float) -> dict[str, float]:
        """Return the Ray resources that a worker with so many units asks for."""
        plain = self.is_cpu and not self.resource
        cpus = self.cpus or (engine_cpus if plain else 0.0)
        own = {} if plain or not units else {self.resource or self.hardware: float(units)}
        return own | ({CPU: cpus} if cpus else {})

    def units_on(
        self, resources: Mapping[str, float], labels: Mapping[str, str], *, engine_cpus: float
    ) -> int:
        """Return how many units a node with these Ray resources and labels has for the pool.

        Where Ray knows of a node's devices, a unit is one of them, whatever else it is called.
        """
        if any(labels.get(key) != value for key, value in self.labels.items()):
            return 0
        asked = self.request(units=1, engine_cpus=engine_cpus)
        unit = CPU if self.is_cpu and not self.resource else self.resource or self.hardware
        units = int(resources.get(unit, 0.0) / asked[unit])
        return units if self.is_cpu or GPU not in resources else min(units, int(resources[GPU]))


_NOT_NEGATIVE = (
    "samples_spread",
    "reset_s",
    "reset_spread",
    "step_s",
    "step_spread",
    "score_s",
    "failure_after_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """How episodes of a task behave, as far as it is known; read by simulator and planner."""

    like: str = ""
    """A shipped profile to start from, such as "swe"; what is given below replaces its figures."""
    turns: tuple[int, int] | None = None
    """Fewest and most turns of an episode."""
    opening_tokens: int | None = None
    """Tokens of the first prompt."""
    reads: int | None = None
    """Mean tokens of an observation."""
    samples: int | None = None
    """Mean tokens of a completion."""
    samples_spread: float | None = None
    """How completions differ: standard deviation of the logarithm."""
    reset_s: float | None = None
    """Mean time of a reset, its tail apart."""
    reset_kind: Kind | None = None
    """How resets are distributed; none: as the profile's, lognormal if only a mean is given."""
    reset_spread: float | None = None
    """How resets differ: standard deviation of the logarithm, or if normal over the mean."""
    reset_tail: tuple[float, float] | None = None
    """Share of resets that take longer, and how many times as long."""
    step_s: float | None = None
    """Mean time of a step, its tail apart."""
    step_kind: Kind | None = None
    """How steps are distributed, as for resets."""
    step_spread: float | None = None
    """How steps differ, as for resets."""
    step_tail: tuple[float, float] | None = None
    """Share of steps that take longer, and how many times as long."""
    score_s: float | None = None
    """Mean time of the reward function, if there is one."""
    failure_rate: float | None = None
    """Share of attempts whose environment fails at its reset."""
    failure_after_s: float | None = None
    """Mean time until such a reset is given up; none: as long as any other."""

    def __post_init__(self) -> None:
        if self.turns is not None and not 1 <= self.turns[0] <= self.turns[1]:
            fix = "must be two numbers, 1 <= fewest <= most"
            raise ConfigError("profile.turns", self.turns, fix)
        for name in ("opening_tokens", "reads", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"profile.{name}", value, "must be at least 1")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"profile.{name}", value, "must be at least 0")
        for name in ("reset_tail", "step_tail"):
            tail = getattr(self, name)
            if tail is not None and not (0 <= tail[0] <= 1 <= tail[1]):
                fix = "must be two numbers: a share from 0 to 1, and how many times as long, from 1"
                raise ConfigError(f"profile.{name}", tail, fix)
        if self.failure_rate is not None and not 0 <= self.failure_rate < 1:
            fix = "must be from 0 to below 1"
            raise ConfigError("profile.failure_rate", self.failure_rate, fix)
