"""What a config asks for that a cluster cannot do, said before anything is made on it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from rollart.config import Config
from rollart.errors import ClusterError, ConfigError
from rollart.runtime.checkpointing import checkpoints


class Machine(Protocol):
    """A node of a cluster."""

    @property
    def address(self) -> str:
        """Where it is."""
        ...


def check_cluster(config: Config, nodes: Iterable[Machine]) -> None:
    """Raise a ConfigError where a config cannot run on these nodes."""
    machines = {node.address for node in nodes}
    store = config.weights.store
    if store == "shared_memory" and len(machines) > 1:
        fix = f'{len(machines)} machines share no memory: use weights.store = "ray"'
        raise ConfigError("weights.store", store, fix)
    if store == "memory":
        fix = 'on Ray the trainer is a process of its own: use "shared_memory" or "ray"'
        raise ConfigError("weights.store", store, fix)


def cluster_gone(address: str, directory: Path) -> ClusterError:
    """Return what is said when a cluster disappears under a run."""
    kept = checkpoints(directory / "checkpoints")
    if not kept:
        return ClusterError(
            f"the Ray cluster at {address} is gone, and there was no checkpoint yet: "
            "run.checkpoint_every says how often one is written"
        )
    return ClusterError(
        f"the Ray cluster at {address} is gone; {kept[-1]} is kept. When there is a cluster "
        f"again, go on with: rollart train --resume {directory} --address HOST:PORT"
    )
