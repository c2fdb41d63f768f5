"""MooncakeBlobs: bytes in Mooncake's distributed store: memory of several machines, by TCP or RDMA.

The location is the address of a `mooncake_master`, host:port, or host:port/name for one of several
stores there. `mooncake_client` processes beside the engines provide the memory; the trainer and the
engines provide none, so no weights are lost when one of them dies. Objects appear when their
transfer is complete. They are pinned, because Mooncake evicts unpinned ones when memory runs short,
and a full store must refuse instead.

`MOONCAKE_PROTOCOL` and `MOONCAKE_DEVICE` choose another transport than TCP, as in Mooncake itself.
"""

import importlib
import os
import socket
import threading
import time
from typing import Any
from weakref import WeakValueDictionary

from rollart.errors import StorageError
from rollart.weights.index import HEAD

os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # the library reads it when it loads
_mooncake: Any = importlib.import_module("mooncake.store")

_HANDSHAKE = "P2PHANDSHAKE"
"""Clients find each other without a metadata server."""
_BUFFER_BYTES = 2**28
_PIECE_BYTES = _BUFFER_BYTES // 4
"""Larger values would not fit beside others in the transfer buffer."""
_CONNECT_S = 10.0
_PATIENCE_S = 1.0
"""How long the index may be unreadable: Mooncake removes an object before replacing it."""
_PAUSE_S = 0.002
_MISSING = -704
_REASONS = {-200: "its memory is full", -600: "the value does not fit the client's buffer"}


class Client:
    """The process's connection to a master, shared by its stores and closed with the last one."""

    def __init__(self, master: str) -> None:
        host, _, port = master.rpartition(":")
        if not host or not port.isdecimal():
            raise StorageError(f"{master!r} is not an address of a mooncake_master: use host:port")
        self.store: Any = _mooncake.MooncakeDistributedStore()
        code = self.store.setup(
            _own_address(host, int(port)),
            _HANDSHAKE,
            0,
            _BUFFER_BYTES,
            os.environ.get("MOONCAKE_PROTOCOL", "tcp"),
            os.environ.get("MOONCAKE_DEVICE", ""),
            master,
        )
        if code:
            raise StorageError(
                f"mooncake_master at {master} does not answer (code {code}): is it running?"
            )


_clients: WeakValueDictionary[str, Client] = WeakValueDictionary()
_clients_lock = threading.Lock()


def open_client(master: str) -> Client:
    """Return this process's client of a master."""
    with _clients_lock:
        client = _clients.get(master)
        if client is None:
            client = _clients[master] = Client(master)
        return client


class MooncakeBlobs:
    """Stores every value as an object of a Mooncake store."""

    def __init__(self, place: str) -> None:
        self._master, _, name = place.partition("/")
        self._prefix = f"rollart-{name}-"
        self._client: Client | None = open_client(self._master)
        self._pinned = _mooncake.ReplicateConfig()
        self._pinned.with_hard_pin = True
        self._has_head = False

    @property
    def place(self) -> str:
        """A description of the store and its location, for messages."""
        return f"the Mooncake store of {self._master}"

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store bytes under a key, replacing the old value."""
        view = memoryview(data)
        self._check_size(view)
        code = self._store.upsert(self._prefix + key, view, self._pinned)
        if code:
            reason = _REASONS.get(code, "it refused the value")
            raise StorageError(
                f"cannot store {len(view)} bytes of weights in {self.place}: {reason} "
                f"(code {code}); add memory (mooncake_client --global_segment_size)"
            )

    def get(self, key: str) -> bytes | memoryview:
        """Return the bytes under a key; raise KeyError if there are none."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            found = self._store.get_buffer(self._prefix + key)
            if found is not None:
                self._has_head = self._has_head or key == HEAD
                return memoryview(found)
            is_there = self._is_there(key)
            if not is_there and not (key == HEAD and self._has_head):
                raise KeyError(key)
            if time.monotonic() >= deadline_s:
                break
            time.sleep(_PAUSE_S)
        if not is_there:
            raise KeyError(key)
        raise StorageError(
            f"cannot read {key} from {self.place}: is its mooncake_client still running?"
        )

    def delete(self, key: str) -> None:
        """Remove a key, if it exists."""
        code = self._store.remove(self._prefix + key, True)
        if code not in (0, _MISSING):
            raise StorageError(f"cannot delete {key} from {self.place} (code {code})")

    def close(self) -> None:
        """Leave the store; what is stored stays."""
        self._client = None

    @property
    def _store(self) -> Any:
        if self._client is None:
            raise StorageError(f"{self.place} was closed")
        return self._client.store

    def _is_there(self, key: str) -> bool:
        code = self._store.is_exist(self._prefix + key)
        if code < 0:
            raise StorageError(f"{self.place} does not answer (code {code}): is it running?")
        return code == 1

    def _check_size(self, view: memoryview) -> None:
        if view.nbytes > _PIECE_BYTES:
            raise StorageError(
                f"{view.nbytes} bytes are too many for one object of {self.place}: "
                f"set weights.bucket_bytes to at most {_PIECE_BYTES}"
            )


def _own_address(host: str, port: int) -> str:
    """Return the address of this machine that the master sees.

    Also checks that the master answers, because Mooncake itself would wait 90 s for one that does
    not.
    """
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S) as probe:
            return probe.getsockname()[0]
    except OSError as error:
        raise StorageError(
            f"mooncake_master at {host}:{port} does not answer: {error}; start it first"
        ) from error
