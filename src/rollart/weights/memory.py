"""MemoryStore: weights in this process, for tests and for a trainer beside its engines.

A version is a copy made at publication, added under a lock when it is complete, and never written
again: what `fetch` returns does not change when the trainer changes its own arrays.
"""

import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from rollart.errors import ConfigError
from rollart.ports import Array
from rollart.types import ArraySpec, Version
from rollart.weights.layout import in_order, place_arrays, specs_of


class MemoryStore:
    """Stores the newest versions as read-only copies."""

    def __init__(self, keep: int = 2) -> None:
        if keep < 1:
            raise ConfigError("weights.keep", keep, "keep at least 1 version")
        self._keep = keep
        self._lock = threading.Lock()
        self._versions: dict[Version, Mapping[str, Array]] = {}

    @property
    def place(self) -> str:
        """A description of the store, for messages."""
        return "this process"

    def publish(self, version: Version, weights: Mapping[str, Array]) -> None:
        """Store a version and make it visible; older ones beyond the newest `keep` are pruned."""
        self.stream(version, specs_of(weights), weights.items())

    def stream(
        self,
        version: Version,
        specs: Mapping[str, ArraySpec],
        arrays: Iterable[tuple[str, Array]],
    ) -> None:
        """Publish a version array by array."""
        place_arrays(specs)  # refuse what other stores refuse
        copies: dict[str, Array] = {}
        for name, array in in_order(specs, arrays):
            copies[name] = np.array(array, order="C", copy=True)
            copies[name].flags.writeable = False
        with self._lock:
            self._versions[version] = MappingProxyType(copies)
            for old in sorted(self._versions)[: -self._keep]:
                del self._versions[old]

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Return a visible version; raise KeyError if it is not (or no longer) stored."""
        with self._lock:
            return self._versions[version]

    def latest(self) -> Version | None:
        """Return the newest visible version."""
        with self._lock:
            return max(self._versions, default=None)

    def close(self) -> None:
        """Do nothing: the memory is freed with the last reference to the store."""
