"""Pools on this machine: which engines a config asks for, and what cannot be had here."""

from rollart.config.schema import Config
from rollart.errors import ConfigError
from rollart.types import EngineId

LOCAL = "local"
"""The pool of a config that names none."""
TRAINING = "training"
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
    for name, pool in config.pools.items():
        wrong = None
        if pool.gpu != "CPU":
            wrong = ("gpu", pool.gpu, "has no such hardware")
        elif pool.role != "rollout":
            wrong = ("role", pool.role, "gives its trainer a process of its own, no pool")
        elif pool.tp > 1:
            wrong = ("tp", pool.tp, "runs each engine on one device")
        elif pool.prefill:
            wrong = ("prefill", pool.prefill, "has engines that both read and sample")
        if wrong:
            field, value, why = wrong
            fix = (
                f'this host {why}; it runs pools with gpu = "CPU" and role = "rollout" alone. '
                "A plan for other hardware can be looked at with --dry-run"
            )
            return ConfigError(f"pools.{name}.{field}", value, fix)
    return None
