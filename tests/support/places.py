"""The places buckets are kept in, each as the tests reach it."""

from contextlib import ExitStack, contextmanager

import pytest
from mooncake_parts import running_master, why_not

from rollart.weights.blobs.relay import RelayServer
from rollart.weights.store import open_store

PLACES = ["files", "files_delta", "fsspec_memory", "fsspec_local", "relay", "relay_far", "mooncake"]
BUCKET_BYTES = 1024
TOKEN = "a token of the tests"


class Places:
    """Opens bucket stores of a place; what it had to start ends with it."""

    def __init__(self, stack: ExitStack, log) -> None:
        self._stack = stack
        self._log = log
        self._relays: dict[str, RelayServer] = {}
        self._master = None

    def open(self, place, directory, keep=2, **options):
        """Open the store of a place for a directory: the same one each time."""
        options.setdefault("bucket_bytes", BUCKET_BYTES)
        options.setdefault("delta", place == "files_delta")
        store = open_store(*self.opening(place, directory), keep, **options)
        if place == "relay_far":
            store.blobs._near = None
        return store

    def opening(self, place, directory):
        """Return the kind and place by which any process opens the store."""
        kind = place if place == "mooncake" else place.partition("_")[0]
        return "files" if kind == "fsspec" else kind, self._url(place, directory)

    def _url(self, place, directory):
        match place:
            case "fsspec_memory":
                return f"memory://{directory}"
            case "fsspec_local":
                return f"file://{directory}"
            case "relay" | "relay_far":
                return self._relay(str(directory))
            case "mooncake":
                return f"{self.master}/{str(directory).replace('/', '-')}"
            case _:
                return str(directory)

    def _relay(self, directory):
        if directory not in self._relays:
            server = RelayServer(directory, token=TOKEN)
            self._stack.callback(server.close)
            self._relays[directory] = server
        return self._relays[directory].address

    @property
    def master(self):
        """The address of a Mooncake master; the test is skipped where there can be none."""
        if self._master is None:
            reason = why_not()
            if reason is not None:
                pytest.skip(reason)
            from rollart.weights.blobs.mooncake import open_client

            self._master, _ = self._stack.enter_context(running_master(self._log))
            client = open_client(self._master)
            self._stack.callback(lambda: client)
        return self._master


@contextmanager
def opened_places(log):
    with ExitStack() as stack:
        yield Places(stack, log)
