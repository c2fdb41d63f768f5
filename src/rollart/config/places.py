"""Places: the workers a config asks for, and the pools they are bound to.

A pool with a role does that and nothing else. One without is given work by preference: the pool
that training likes best trains, CPUs beside devices host environments, the others roll out; where
no other pool is left for engines, they get what training leaves. Without a cluster the pools are
this machine's: CPUs for engines alone, and anything else is refused by its key.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from rollart.config.pools import LENT, LOCAL
from rollart.config.schema import Config
from rollart.control.placement import CPU, Needs, PoolCapacity
from rollart.errors import ConfigError
from rollart.types import EngineId

Use: TypeAlias = Literal["train", "rollout", "environments"]
_GB = 1e9


class Node(Protocol):
    """A machine of a cluster, as the cluster describes it."""

    @property
    def id(self) -> str:
        """What the cluster calls it."""
        ...

    @property
    def resources(self) -> Mapping[str, float]:
        """What it has of each resource."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """How it is labelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """What one worker is bound with."""

    preferred: tuple[str, ...]
    needs: Needs


def capacities(config: Config) -> tuple[PoolCapacity, ...]:
    """Return the pools as workers are bound to them; without any, one for the replicas."""
    if config.pools:
        return tuple(pool.capacity(name) for name, pool in config.pools.items())
    units = config.engine.replicas + config.training.ranks
    return (PoolCapacity(name=LOCAL, hardware=CPU, units=units, memory_gb_per_unit=float("inf")),)


def alive(config: Config, nodes: Iterable[Node]) -> dict[str, dict[str, int]]:
    """Return the units of each pool that a cluster's nodes have, by node.

    Without pools every node may have all engines, as this machine has without Ray.
    """
    nodes = list(nodes)
    if not config.pools:
        return {LOCAL: {node.id: each.units for node in nodes for each in capacities(config)}}
    return {
        name: {node.id: pool.units_on(node.resources, node.labels) for node in nodes}
        for name, pool in config.pools.items()
    }


def uses_of(config: Config) -> dict[str, Use]:
    """Return what each pool does."""
    trains = config.preferences.train[0] if config.preferences.train else ""
    has_devices = any(not pool.is_cpu for pool in config.pools.values())
    uses: dict[str, Use] = {}
    for name, pool in config.pools.items():
        if pool.role != "any":
            uses[name] = pool.role
        elif name == trains:
            uses[name] = "train"
        elif pool.is_cpu and has_devices:
            uses[name] = "environments"
        else:
            uses[name] = "rollout"
    return uses


def engine_places(config: Config, *, weight_bytes: float = 0.0) -> dict[EngineId, WorkerPlace]:
    """Return the engines of a cluster and where they would like to be, or say why there are none.

    `weight_bytes` is what the model needs at least; a pool with less memory is passed by.
    """
    error = refused_split(config)
    if error is not None:
        raise error
    if not config.pools:
        place = WorkerPlace(preferred=(LOCAL,), needs=Needs())
        return {
            EngineId(f"{config.engine.label}-{n}"): place for n in range(config.engine.replicas)
        }
    places: dict[EngineId, WorkerPlace] = {}
    for name, units in _rollout_units(config).items():
        tp = max(1, config.pools[name].tp)
        others = (other for other in config.preferences.generation if other != name)
        place = WorkerPlace(
            preferred=(name, *others), needs=Needs(units=tp, memory_gb=weight_bytes / _GB)
        )
        places |= {EngineId(f"{name}-{number}"): place for number in range(units // tp)}
    if not places:
        fix = 'no engine has room beside training: add a pool, or set role = "rollout" for one'
        raise ConfigError("pools", list(config.pools), fix)
    return places


def refused_split(config: Config) -> ConfigError | None:
    """Return what is said of pools whose engines only read or only sample; None without any."""
    for name, pool in config.pools.items():
        if pool.prefill:
            fix = (
                f"the engine {config.engine.name} both reads and samples: leave prefill and decode "
                "out, or plan with --no-split; only `rollart simulate` takes a split"
            )
            return ConfigError(f"pools.{name}.prefill", pool.prefill, fix)
    return None


def idle_units(config: Config) -> dict[str, int]:
    """Return how many units of each pool that only trains no rank is for."""
    uses = uses_of(config)
    if "rollout" not in uses.values():
        return {}
    left, idle = config.training.ranks, dict[str, int]()
    for name in (name for name, use in uses.items() if use == "train"):
        count = config.pools[name].count
        idle[name] = max(0, count - left)
        left = max(0, left - count)
    return {name: count for name, count in idle.items() if count}


def unused_units(config: Config) -> list[str]:
    """Say of which pools engines hold units that the engine, one process, does not use."""
    if not config.pools:
        return []
    return [
        f"pools.{name}.tp = {config.pools[name].tp}: an engine of it holds so many units of one "
        f"node, but {config.engine.name} is one process and computes on the first of them only"
        for name in _rollout_units(config)
        if config.pools[name].tp > 1
    ]


def trainer_place(config: Config) -> WorkerPlace:
    """Return where one training rank would like to be."""
    return WorkerPlace(preferred=config.preferences.train, needs=Needs())


def environment_place(config: Config) -> WorkerPlace | None:
    """Return where one environment worker would like to be; None: where the run is started.

    It takes CPUs, no unit of the pool: the nodes of any pool can host it.
    """
    names = config.preferences.environments
    if config.pools and names[0] == LOCAL:
        return None
    known = config.pools or {LOCAL: None}
    preferred = tuple(name for name in names if name in known)
    return WorkerPlace(preferred=preferred, needs=Needs(units=0))


def _rollout_units(config: Config) -> Mapping[str, int]:
    """Return how many units of each pool are for engines."""
    uses = uses_of(config)
    serving = {name: config.pools[name].count for name, use in uses.items() if use == "rollout"}
    if serving:
        return serving
    shared = [name for name, use in uses.items() if use == "train"]
    shared = [name for name in shared if config.pools[name].role == "any"]
    return {name: config.pools[name].count - config.training.ranks for name in shared}


TRAINING = LENT
"""The pool of engines that run on the trainer's cores while it waits."""


def local_engines(config: Config) -> dict[EngineId, str]:
    """Return the pool of each engine, or say what this host cannot do."""
    if not config.pools:
        names = range(config.engine.replicas)
        return {EngineId(f"{config.engine.label}-{each}"): LOCAL for each in names}
    error = refusal(config)
    if error is not None:
        raise error
    return {
        EngineId(f"{name}-{each}"): name
        for name, pool in config.pools.items()
        for each in range(pool.count)
    }


def refusal(config: Config) -> ConfigError | None:
    """Return what this host cannot do of the pools; None if it can run them."""
    error = refused_split(config)
    if error is not None:
        return error
    for name, pool in config.pools.items():
        wrong = None
        if not pool.is_cpu:
            wrong = ("class", pool.hardware, "has no such hardware")
        elif pool.role == "environments":
            wrong = ("role", pool.role, "hosts environments in its own process")
        elif pool.role != "rollout":
            wrong = ("role", pool.role, "gives its trainer a process of its own, no pool")
        elif pool.tp > 1:
            wrong = ("tp", pool.tp, "runs each engine on one device")
        elif pool.resource or pool.labels:
            which = "resource" if pool.resource else "labels"
            wrong = (which, getattr(pool, which), "has no nodes to choose from")
        if wrong:
            field, value, why = wrong
            fix = (
                f'this host {why}; it runs pools with class = "CPU" and role = "rollout" alone. '
                "Run it on a Ray cluster with --address, or only look at the plan with --dry-run"
            )
            return ConfigError(f"pools.{name}.{field}", value, fix)
    elsewhere = [name for name in config.preferences.rewards if name != LOCAL]
    if elsewhere:
        fix = f'this host scores where trajectories are: "{LOCAL}". Give other pools with --address'
        return ConfigError("affinity.rewards", elsewhere[0], fix)
    return None
