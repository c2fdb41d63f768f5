"""Pools and affinity: the hardware a run has, and which of it each phase and task prefers.

On this machine pools of CPUs become engines; on a cluster every pool is a share of the nodes that
have its resource and labels. The simulator and the planner read the same options.

What a config does not say follows from the hardware, as in the paper: training goes where the most
operations are, generation where there is the most memory bandwidth for each operation, environments
go to CPUs, rewards are scored where the trajectory is. A task domain without an entry is served by
the engine with the least to do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from rollart.config.fields import named
from rollart.constraints import AtLeast, check_fields
from rollart.control.placement import CPU, PoolCapacity
from rollart.errors import ConfigError
from rollart.hardware.gpus import Gpu, gpu_named, link_named

Names: TypeAlias = str | tuple[str, ...]
"""One pool, or several, best first."""
LOCAL = "local"
"""The pool of a config that names none; of rewards and environments, where the run is started."""
LENT = "training"
"""The pool of engines that run on training hardware while it waits."""
_ROLES = {"train": "train", "generation": "rollout", "environments": "environments"}
GPU = "GPU"
"""What Ray calls every device, of whatever class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Hardware of one kind and what it is for.

    Example:
        >>> PoolOptions(hardware="H800", count=64, role="train").memory_gb_each
        80.0

    """

    hardware: str = field(metadata=named("class"))
    """The hardware class, such as "H800"; "CPU" is that of machines without GPUs."""
    count: Annotated[int, AtLeast(1)]
    """How many there are; of CPUs, how many engines or workers."""
    role: Literal["any", "train", "rollout", "environments"] = "any"
    """What they do; "any" is up to the planner, or to [affinity]."""
    tp: int = 0
    """GPUs of one engine; 0 is up to the planner."""
    prefill: Annotated[int, AtLeast(0)] = 0
    """Prefill engines of one unit; 0: engines read and sample, unless the planner finds better."""
    decode: Annotated[int, AtLeast(0)] = 0
    """Decode engines of one unit; given together with prefill."""
    price: Annotated[float, AtLeast(0)] = 0.0
    """Price of one GPU hour in any currency; 0 takes the table's, relative to an H20."""
    link: str = ""
    """The link of new weights to a store and on to it, such as "rdma_400g"; empty: "tcp_200g"."""
    resource: str = ""
    """The Ray resource one of them is; empty: the class's name, of CPUs Ray's own CPUs."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Ray labels a node must have to belong to the pool."""
    memory_gb: Annotated[float, AtLeast(0)] = 0.0
    """Memory of one of them in 10^9 bytes; 0 takes the hardware table's."""
    cpus: Annotated[float, AtLeast(0)] = 0.0
    """CPU cores an engine or worker of it asks for; 0: none, on CPUs 1."""

    def __post_init__(self) -> None:
        gpu = gpu_named(self.hardware, field="pools.class")
        if self.link:
            link_named(self.link, field="pools.link")
        check_fields(self, "pools")
        if not 0 <= self.tp <= gpu.gpus_per_node:
            fix = f"must be from 0 (up to the planner) to {gpu.gpus_per_node}, a node's GPUs"
            raise ConfigError("pools.tp", self.tp, fix)
        if (self.prefill == 0) != (self.decode == 0):
            fix = "give both prefill and decode, or neither"
            raise ConfigError("pools.prefill", self.prefill, fix)
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

    def request(self, *, units: int) -> dict[str, float]:
        """Return the Ray resources that a worker with so many units asks for."""
        plain = self.is_cpu and not self.resource
        cpus = self.cpus or (1.0 if plain else 0.0)
        own = {} if plain or not units else {self.resource or self.hardware: float(units)}
        return own | ({CPU: cpus} if cpus else {})

    def units_on(self, resources: Mapping[str, float], labels: Mapping[str, str]) -> int:
        """Return how many units a node with these Ray resources and labels has for the pool.

        Where Ray knows of a node's devices, a unit is one of them, whatever else it is called.
        """
        if any(labels.get(key) != value for key, value in self.labels.items()):
            return 0
        asked = self.request(units=1)
        unit = CPU if self.is_cpu and not self.resource else self.resource or self.hardware
        units = int(resources.get(unit, 0.0) / asked[unit])
        return units if self.is_cpu or GPU not in resources else min(units, int(resources[GPU]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """Pools, best first, with what the config leaves open filled in.

    Example:
        >>> AffinityOptions().resolve({"a": PoolOptions(hardware="H20", count=8)}).generation
        ('a',)

    """

    train: tuple[str, ...]
    generation: tuple[str, ...]
    environments: tuple[str, ...]
    rewards: tuple[str, ...]
    tasks: Mapping[str, tuple[str, ...]]
    """By domain; "default" stands for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityOptions:
    """Where work goes: a pool's name, or several in a list, best first.

    Example:
        >>> AffinityOptions(train="h800", tasks={"swe": ("h20", "h800")})

    """

    tasks: Mapping[str, Names] = field(default_factory=dict[str, Names])
    """Pools that serve each task domain; "default" stands for the others."""
    train: Names = ()
    """Pools for training; empty: by operations per second."""
    generation: Names = ()
    """Pools for engines; empty: by memory bandwidth for each operation."""
    environments: Names = ()
    """Pools for environment workers; empty: those of CPUs first."""
    rewards: Names = LOCAL
    """Pools for reward workers; "local": where the trajectory is."""

    def check(self, pools: Mapping[str, PoolOptions]) -> None:
        """Raise a ConfigError if a name is no pool, or the pool is for something else."""
        for domain, names in self.tasks.items():
            _check_names(f"affinity.tasks.{domain}", _listed(names), {*pools, LENT}, pools)
        for phase in ("train", "generation", "environments", "rewards"):
            names = _listed(getattr(self, phase))
            known = {*pools, LOCAL} if phase in ("environments", "rewards") else {*pools}
            _check_names(f"affinity.{phase}", names, known, pools)
            if phase in _ROLES and names and names[0] in pools:
                _check_role(phase, names[0], pools[names[0]])

    def within(self, pools: Mapping[str, PoolOptions]) -> "AffinityOptions":
        """Return what it says of these pools, without what it says of others."""

        def kept(names: Names) -> tuple[str, ...]:
            return tuple(name for name in _listed(names) if name in (*pools, LOCAL, LENT))

        return AffinityOptions(
            tasks={domain: kept(names) for domain, names in self.tasks.items()},
            train=kept(self.train),
            generation=kept(self.generation),
            environments=kept(self.environments),
            rewards=kept(self.rewards) or LOCAL,
        )

    def resolve(self, pools: Mapping[str, PoolOptions]) -> Preferences:
        """Return who prefers what."""
        here = () if pools else (LOCAL,)
        return Preferences(
            train=_listed(self.train) or _trainers(pools) or here,
            generation=_listed(self.generation) or _generators(pools) or here,
            environments=_listed(self.environments) or _hosts(pools) or here,
            rewards=_listed(self.rewards) or (LOCAL,),
            tasks={domain: _listed(names) for domain, names in self.tasks.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingOptions:
    """How requests find engines; the pools they prefer are in [affinity].

    Example:
        >>> RoutingOptions(sticky=False)

    """

    sticky: bool = True
    """Keep an episode on one engine, so that its prefix is reused."""
    learn: bool = False
    """Send requests where they are measured to delay least; until that is known, by affinity."""


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _check_names(
    field: str, names: Iterable[str], known: Iterable[str], pools: Mapping[str, PoolOptions]
) -> None:
    for name in names:
        if name not in known and (pools or name != LOCAL):
            raise ConfigError(field, name, f"no such pool; there is {', '.join(pools) or LOCAL}")


def _check_role(phase: str, name: str, pool: PoolOptions) -> None:
    if pool.role not in ("any", _ROLES[phase]):
        fix = f'pools.{name}.role = "{pool.role}" keeps it for something else: change one of them'
        raise ConfigError(f"affinity.{phase}", name, fix)


def _trainers(pools: Mapping[str, PoolOptions]) -> tuple[str, ...]:
    """Return the pools that may train: those that do nothing else first, then by operations."""
    found = {name: pools[name] for name in _allowed(pools, "train")}
    return tuple(sorted(found, key=lambda n: (found[n].role == "any", -found[n].gpu.dense_tflops)))


def _generators(pools: Mapping[str, PoolOptions]) -> tuple[str, ...]:
    """Return the pools that may roll out: those that do nothing else first, then by bandwidth."""
    found = {name: pools[name] for name in _allowed(pools, "rollout")}

    def rank(name: str) -> tuple[bool, float]:
        gpu = found[name].gpu
        return found[name].role == "any", -gpu.hbm_tb_s / gpu.dense_tflops

    return tuple(sorted(found, key=rank))


def _allowed(pools: Mapping[str, PoolOptions], role: str) -> list[str]:
    """Return the pools with a role or with none; CPUs without one only if there is no device."""
    has_devices = any(not pool.is_cpu for pool in pools.values())
    return [
        name
        for name, pool in pools.items()
        if pool.role == role or (pool.role == "any" and not (pool.is_cpu and has_devices))
    ]


def _hosts(pools: Mapping[str, PoolOptions]) -> tuple[str, ...]:
    """Return all pools: those for environments, then CPUs with no other use, CPUs, and the rest."""

    def rank(name: str) -> tuple[bool, bool, bool]:
        pool = pools[name]
        return pool.role != "environments", not pool.is_cpu, pool.role != "any"

    return tuple(sorted(pools, key=rank))
