"""Affinity: which pools each phase of a run and each task domain prefers, best first.

What a config does not say follows from the hardware, as in the paper: training goes where the most
operations are, generation where there is the most memory bandwidth for each operation, environments
go to CPUs, rewards stay with whoever asks for them. A task domain without an entry is served by
whichever engine has the least to do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rollart.config.pools import PoolOptions
from rollart.errors import ConfigError

Names: TypeAlias = str | tuple[str, ...]
"""One pool, or several, best first."""
LOCAL = "local"
"""The pool of a config that names none; of rewards and environments, where the run is started."""
LENT = "training"
"""The pool of engines that run on training hardware while it waits."""
_ROLES = {"train": "train", "generation": "rollout", "environments": "environments"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """Pools, best first, with what the config leaves open filled in."""

    train: tuple[str, ...]
    generation: tuple[str, ...]
    environments: tuple[str, ...]
    rewards: tuple[str, ...]
    tasks: Mapping[str, tuple[str, ...]]
    """By domain; "default" stands for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityOptions:
    """Where work goes: a pool's name, or several in a list, best first."""

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
    """How requests find engines; the pools they prefer are in [affinity]."""

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
