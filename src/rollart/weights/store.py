"""Opens the weight store that a config names; owns the store within one process (`MemoryStore`).

Processes are started with plain options, so they find a common store by kind and location: opening
the same location twice gives the same store, within a process for `memory`, within a machine for
`shared_memory`, and from everywhere the location can be reached for the others.
"""

import importlib
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from weakref import WeakValueDictionary

import numpy as np

from rollart.errors import ConfigError, UserError
from rollart.plugins import BUILT_IN, find, resolve, split_name
from rollart.ports import Array, Blobs, WeightStore
from rollart.types import ArraySpec, Version
from rollart.weights.buckets import BUCKET_BYTES, BucketStore
from rollart.weights.layout import in_order, place_arrays, specs_of
from rollart.weights.shared_memory import SharedMemoryStore


class MemoryStore:
    """Stores the newest versions as read-only copies, for tests and single-process runs.

    A version is added under a lock when its copy is complete, and never written again: what `fetch`
    returns does not change when the trainer changes its own arrays.

    """

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


KINDS = ("memory", "shared_memory", *BUILT_IN["store"])
EXTRAS = {"fsspec": "files", "mooncake": "mooncake"}

_memory_stores: WeakValueDictionary[str, MemoryStore] = WeakValueDictionary()
_memory_stores_lock = threading.Lock()


def open_store(
    kind: str,
    directory: str,
    keep: int,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    delta: bool = False,
    run: str = "",
) -> WeightStore:
    """Open the store of this kind at `directory`: a path, a URL or an address.

    `run` names the run that publishes or loads weights there, so that none loads another's;
    `memory` and `shared_memory` have a place for each run already. A kind "module:Class" stores
    buckets in that Blobs class, constructed with `directory`. A trainer is made with these
    arguments as its `store`.

    Example:
        >>> store = open_store(**options)  # {"kind": "shared_memory", "directory": …, "keep": 3}
        >>> store.publish(Version(4), weights)

    """
    match kind:
        case "memory":
            return _open_memory(directory, keep)
        case "shared_memory":
            return SharedMemoryStore(directory, keep=keep)
        case _ if split_name(resolve("store", kind)):
            blobs = _open_blobs(kind, directory)
            try:
                return BucketStore(
                    blobs, keep=keep, bucket_bytes=bucket_bytes, delta=delta, run=run
                )
            except BaseException:
                blobs.close()
                raise
        case _:
            raise ConfigError("weights.store", kind, f"choose one of {', '.join(KINDS)}")


def _open_blobs(kind: str, place: str) -> Blobs:
    if kind == "files" and "://" in place:
        kind = "fsspec"
    if kind not in BUILT_IN["store"]:
        return find("store", kind, field="weights.store")(place)
    module, _, name = resolve("store", kind).partition(":")
    try:
        make: Callable[[str], Blobs] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        extra = EXTRAS.get(kind)
        hint = "" if extra is None else f"; pip install 'rollart[{extra}]'"
        raise UserError(f"weights.store = {kind!r} cannot be used: {error}{hint}") from error
    return make(place)


def _open_memory(directory: str, keep: int) -> MemoryStore:
    with _memory_stores_lock:
        store = _memory_stores.get(directory)
        if store is None:
            store = _memory_stores[directory] = MemoryStore(keep)
        return store
