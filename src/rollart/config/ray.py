"""Ray: which cluster a run is on and what it asks of it beside its pools."""

from dataclasses import dataclass

from rollart.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The cluster of a run; without an address it runs on this machine, without Ray."""

    address: str = ""
    """"local" is a Ray of our own here, "auto" or host:port joins one; empty: no Ray."""
    environment_workers: int = 0
    """Processes that host environments; 0: one for each CPU node, and at least 2."""
    spare_workers: int = 1
    """More of them beside the driver, which take over while no other is there; 0: none."""
    engine_cpus: float = 1.0
    """CPUs an engine on CPUs asks for where its pool does not say."""
    restart_s: float = 1.0
    """Seconds between looks at the cluster, at which lost workers get new places."""

    def __post_init__(self) -> None:
        for name in ("environment_workers", "spare_workers"):
            if getattr(self, name) < 0:
                raise ConfigError(f"ray.{name}", getattr(self, name), "must be at least 0")
        for name in ("engine_cpus", "restart_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"ray.{name}", getattr(self, name), "must be more than 0")
