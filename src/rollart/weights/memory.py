"""Weights in this process: for tests and for a trainer that shares its process with the engines.

A version is a copy made at publication, entered under a lock when it is whole, and never written
again: what `fetch` returns stays as it was, whatever the trainer does to its own arrays.
"""

import threading
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from rollart.errors import ConfigError, InvariantError
from rollart.ports import Array
from rollart.types import Version

NUMBER_KINDS = "biufc"
"""numpy's dtype kinds that a weight may have."""


def check_numeric(name: str, array: Array) -> None:
    """Refuse an array whose bytes alone would not restore it."""
    if array.dtype.kind not in NUMBER_KINDS:
        raise InvariantError(
            f"weight {name!r} has dtype {array.dtype}: "
            "wanted numbers (bfloat16 as the uint16 array of its bits)"
        )


class MemoryStore:
    """Keeps the newest versions as read-only copies."""

    def __init__(self, keep: int = 2) -> None:
        if keep < 1:
            raise ConfigError("weights.keep", keep, "keep at least 1 version")
        self._keep = keep
        self._lock = threading.Lock()
        self._versions: dict[Version, Mapping[str, Array]] = {}

    @property
    def place(self) -> str:
        """What and where it is, for messages."""
        return "this process"

    def publish(self, version: Version, weights: Mapping[str, Array]) -> None:
        """Store a version and make it visible; older ones beyond the newest `keep` are pruned."""
        copies: dict[str, Array] = {}
        for name, array in weights.items():
            check_numeric(name, array)
            copies[name] = np.array(array, order="C", copy=True)
            copies[name].flags.writeable = False
        with self._lock:
            self._versions[version] = MappingProxyType(copies)
            for old in sorted(self._versions)[: -self._keep]:
                del self._versions[old]

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Return a visible version; raises KeyError if it is not (or no longer) there."""
        with self._lock:
            return self._versions[version]

    def latest(self) -> Version | None:
        """Return the newest visible version."""
        with self._lock:
            return max(self._versions, default=None)

    def close(self) -> None:
        """Do nothing: the memory is freed when the last holder lets go of the store."""
