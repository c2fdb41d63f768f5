"""Pools on this machine: which engines a config asks for, and what cannot be had here."""

from rollart.config.affinity import LENT, LOCAL
from rollart.config.placing import refused_split
from rollart.config.schema import Config
from rollart.errors import ConfigError
from rollart.types import EngineId

TRAINING = LENT
"""The pool of engines that run on the trainer's cores while it waits."""


def local_engines(config: Config) -> dict[EngineId, str]:
    """Return the pool of each engine, or say what this host cannot do."""
    if not config.pools:
        names = range(config.engine.replicas)
        return {EngineId(f"{config.engine.name}-{each}"): LOCAL for each in names}
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
