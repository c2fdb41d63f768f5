"""Opens the weight store that a config names.

Processes are started with plain options, so they find a common store by kind and location: opening
the same location twice gives the same store, within a process for `memory`, within a machine for
`shared_memory`, and from everywhere the location can be reached for the others.
"""

import importlib
import threading
from collections.abc import Callable
from weakref import WeakValueDictionary

from rollart.errors import ConfigError, UserError
from rollart.plugins import BUILT_IN, find, resolve, split_name
from rollart.ports import Blobs, WeightStore
from rollart.weights.buckets import BUCKET_BYTES, BucketStore
from rollart.weights.memory import MemoryStore
from rollart.weights.shared_memory import SharedMemoryStore

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
) -> WeightStore:
    """Open the store of this kind at `directory`: a path, a URL or an address.

    A kind "module:Class" stores buckets in that Blobs class, constructed with `directory`.
    """
    match kind:
        case "memory":
            return _open_memory(directory, keep)
        case "shared_memory":
            return SharedMemoryStore(directory, keep=keep)
        case _ if split_name(resolve("store", kind)):
            blobs = _open_blobs(kind, directory)
            try:
                return BucketStore(blobs, keep=keep, bucket_bytes=bucket_bytes, delta=delta)
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
