"""Named bytes in Ray's object store: where weights are when engines and trainer share a cluster.

A `Table`, an actor of its own, owns the values, so they survive the trainer that wrote them. They
are kept on the table's machine, that of the run's driver, and readers on one machine share one
copy. `explain` says what to do when the store is full.
"""

from typing import Any

import numpy as np
import ray
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rollart.cluster.ray_session import here
from rollart.errors import StorageError

FULL = (ObjectStoreFullError, OutOfDiskError)
"""No room in memory, or none to spill to."""


def explain(error: Exception) -> str:
    """Return what is full and what helps, in one line."""
    why = str(error).strip().split("\n", 1)[0]
    return (
        f"Ray's object store is full ({why}); start the nodes with more --object-store-memory, "
        "or lower weights.keep or batching.groups_per_step"
    )


_CALL_S = 60.0


class Table:
    """Which key names which object."""

    def __init__(self) -> None:
        self._refs: dict[str, list[Any]] = {}

    def put(self, key: str, value: Any) -> None:
        """Store a value as an object that this actor owns."""
        self._refs[key] = [ray.put(value)]

    def get(self, key: str) -> list[Any] | None:
        """Return the reference under a key."""
        return self._refs.get(key)

    def delete(self, key: str) -> None:
        """Forget a key, and with it the object."""
        self._refs.pop(key, None)


class RayBlobs:
    """Bytes by key in the cluster's object store."""

    def __init__(self, name: str) -> None:
        """Find the table of this name, or make it; it lives as long as the run's driver."""
        self._name = name
        table: Any = ray.remote(Table)
        self._table = table.options(
            name=f"rollart-weights-{name}",
            namespace="rollart",
            get_if_exists=True,
            num_cpus=0,
            # Beside its first user, the run's driver: the loss of another node does not end it.
            scheduling_strategy=NodeAffinitySchedulingStrategy(here(), soft=False),
        ).remote()

    @property
    def place(self) -> str:
        """What and where it is, for messages."""
        return f"the Ray object store ({self._name})"

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store bytes under a key in place of what was there."""
        value = np.frombuffer(data, dtype=np.uint8)
        try:
            ray.get(self._table.put.remote(key, value), timeout=_CALL_S)
        except (RayError, GetTimeoutError) as error:
            raise self._refusal(f"cannot store {value.nbytes} bytes as {key}", error) from error

    def get(self, key: str) -> memoryview:
        """Return the bytes under a key; raises KeyError if there are none."""
        try:
            refs: Any = ray.get(self._table.get.remote(key), timeout=_CALL_S)
            if refs is None:
                raise KeyError(key)
            return memoryview(ray.get(refs[0], timeout=_CALL_S))
        except ObjectLostError as error:
            raise KeyError(key) from error
        except (RayError, GetTimeoutError) as error:
            raise self._refusal(f"cannot read {key}", error) from error

    def delete(self, key: str) -> None:
        """Remove a key, if it is there."""
        try:
            ray.get(self._table.delete.remote(key), timeout=_CALL_S)
        except (RayError, GetTimeoutError) as error:
            raise self._refusal(f"cannot remove {key}", error) from error

    def close(self) -> None:
        """Do nothing: the table ends with the run that made it."""

    def _refusal(self, what: str, error: Exception) -> StorageError:
        lost = "; the cluster or the table is lost" if isinstance(error, RayActorError) else ""
        why = explain(error) if isinstance(error, FULL) else str(error).strip().splitlines()[0]
        return StorageError(f"{self.place}: {what}{lost}: {why}")
