"""Opening a weight store by its name in the config.

Actors are made from plain options, so they find a common store by kind and directory: one opened
twice for the same directory is the same store, within a process for `memory`, within a machine
for `shared_memory`.
"""

import threading
from weakref import WeakValueDictionary

from rollart.errors import ConfigError
from rollart.ports import WeightStore
from rollart.weights.memory import MemoryStore
from rollart.weights.shared_memory import SharedMemoryStore

KINDS = ("memory", "shared_memory")

_memory_stores: WeakValueDictionary[str, MemoryStore] = WeakValueDictionary()
_memory_stores_lock = threading.Lock()


def open_store(kind: str, directory: str, keep: int) -> WeightStore:
    """Open the store of this kind at `directory`."""
    match kind:
        case "memory":
            return _open_memory(directory, keep)
        case "shared_memory":
            return SharedMemoryStore(directory, keep=keep)
        case _:
            raise ConfigError("weights.store", kind, f"choose one of {', '.join(KINDS)}")


def _open_memory(directory: str, keep: int) -> MemoryStore:
    with _memory_stores_lock:
        store = _memory_stores.get(directory)
        if store is None:
            store = _memory_stores[directory] = MemoryStore(keep)
        return store
