"""Pulling: weights on the side of the engines, fetched before they are asked for.

A `Puller` has a thread of its own, beside the event loop and the engines' threads. It looks at
the store's head and pulls the newest version's buckets as they appear, while the trainer still
pushes and the engines still decode. `fetch` then waits only for what is not here yet: the unhidden
tail. All engines of a process share one puller, so a version is pulled once per process. The two
newest are kept: engines that change weights one after another may still want the one before.

A store that fails is asked again, less and less often, and goes on where it failed: whoever waits
learns of it only when `wait_s` have passed. Weights that are damaged are told at once.

Looking at the head is the only way to learn of a bucket: a store of plain bytes calls nobody.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from rollart.errors import CorruptError, InvariantError, PrunedError, StorageError
from rollart.ports import Array, WeightStore
from rollart.types import Version
from rollart.weights.buckets import BucketStore
from rollart.weights.download import Download, LoadedVersion
from rollart.weights.index import Stored, StoreIndex

WAIT_S = 120.0
_LOOK_EVERY_S = 0.02
_LONGEST_PAUSE_S = 0.5
"""Longest pause after the store failed."""
_FINAL = (CorruptError, InvariantError)
"""What trying again does not mend."""
_KEPT = 2
_UNSHARED = 2
"""References to an array that one variable and the question itself make."""


class Source(Protocol):
    """Where engines get weights from."""

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Return a version, waiting for it; StorageError if it does not arrive in time."""
        ...

    def pulled_s(self, version: Version) -> float:
        """Return the seconds spent pulling a version that was fetched."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


def open_source(store: WeightStore, *, wait_s: float = WAIT_S) -> Source:
    """Return the source for a store: prefetching where that hides anything."""
    if isinstance(store, BucketStore):
        return Prefetcher(store, wait_s=wait_s)
    return Direct(store, wait_s=wait_s)


class Direct:
    """Fetches when asked: for stores whose versions are already here."""

    def __init__(self, store: WeightStore, *, wait_s: float = WAIT_S) -> None:
        self._store = store
        self._wait_s = wait_s
        self._pulled: dict[Version, float] = {}

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Return a version, waiting for it; StorageError if it does not arrive in time."""
        deadline_s = time.monotonic() + self._wait_s
        while True:
            start_s = time.perf_counter()
            try:
                weights = self._store.fetch(version)
            except KeyError:
                if time.monotonic() >= deadline_s:
                    raise _too_late(version, self._store, self._wait_s) from None
                time.sleep(_LOOK_EVERY_S)
            else:
                self._pulled = {version: time.perf_counter() - start_s}
                return weights

    def pulled_s(self, version: Version) -> float:
        """Return the seconds spent pulling a version that was fetched."""
        return self._pulled.get(version, 0.0)

    def close(self) -> None:
        """Do nothing."""


class Prefetcher:
    """Pulls new versions from a bucket store in a thread of its own."""

    def __init__(self, store: BucketStore, *, wait_s: float = WAIT_S) -> None:
        self._store = store
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._held: dict[Version, LoadedVersion] = {}
        self._download: Download | None = None
        self._spare: Array | None = None
        """Memory of a version that is no longer kept."""
        self._wanted: dict[Version, int] = {}
        """Versions being waited for, and by how many."""
        self._failed: dict[Version, Exception] = {}
        self._last_error: Exception | None = None
        """Why the store could not be read when it was last tried."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="weights-puller", daemon=True)
        self._thread.start()

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Return a version, waiting for it; StorageError if it does not arrive in time."""
        until_s = time.monotonic() + self._wait_s
        head = self._head(version, until_s)
        with self._changed:
            self._drop_replaced(version, head)
            self._failed.pop(version, None)
            self._wanted[version] = self._wanted.get(version, 0) + 1
            self._changed.notify_all()
            try:
                left_s = max(0.0, until_s - time.monotonic())
                self._changed.wait_for(lambda: self._is_settled(version), left_s)
            finally:
                self._wanted[version] -= 1
                if not self._wanted[version]:
                    del self._wanted[version]
            loaded = self._held.get(version)
            if loaded is not None:
                return loaded.arrays
            error, last_error = self._failed.pop(version, None), self._last_error
        if error is not None:
            raise error
        if self._closed:
            raise StorageError(f"version {version} was asked of a puller that is closed")
        if last_error is not None:
            raise _unreadable(version, self._store, self._wait_s, last_error) from last_error
        raise _too_late(version, self._store, self._wait_s)

    def pulled_s(self, version: Version) -> float:
        """Return the seconds spent pulling a version that was fetched."""
        loaded = self._held.get(version)
        return 0.0 if loaded is None else loaded.pull_s

    def close(self) -> None:
        """End the thread; the store stays open."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _head(self, version: Version, until_s: float) -> StoreIndex:
        """Return what is stored now, for one who waits for a version until then."""
        retry_s = _LOOK_EVERY_S
        while True:
            try:
                return self._store.head()
            except _FINAL:
                raise
            except Exception as error:
                if self._closed or time.monotonic() >= until_s:
                    raise _unreadable(version, self._store, self._wait_s, error) from error
            with self._changed:
                self._changed.wait(retry_s)
            retry_s = min(2 * retry_s, _LONGEST_PAUSE_S)

    def _drop_replaced(self, version: Version, head: StoreIndex) -> None:
        """Forget a version that was published again since, as by a run that went back."""
        loaded, stored, latest = self._held.get(version), head.visible(version), head.latest
        is_pruned = stored is None and latest is not None and latest.version > version
        if loaded is not None and not is_pruned and (stored is None or stored.id != loaded.id):
            del self._held[version]

    def _is_settled(self, version: Version) -> bool:
        return version in self._held or version in self._failed or self._closed

    def _run(self) -> None:
        pause_s = retry_s = _LOOK_EVERY_S
        while not self._closed:
            try:
                has_more = self._advance()
                self._last_error, pause_s, retry_s = None, _LOOK_EVERY_S, _LOOK_EVERY_S
                if has_more:
                    continue
            except _FINAL as error:
                self._fail_waiters(error)
                pause_s = _LONGEST_PAUSE_S
            except Exception as error:  # the thread outlives a bad moment
                self._last_error, pause_s, retry_s = (
                    error,
                    retry_s,
                    min(2 * retry_s, _LONGEST_PAUSE_S),
                )
            with self._changed:
                if not self._closed:
                    self._changed.wait(pause_s)

    def _fail_waiters(self, error: Exception) -> None:
        """Give an error to those who wait, and begin anew."""
        self._download = None
        with self._changed:
            for version in self._wanted:
                self._failed[version] = error
            self._changed.notify_all()

    def _advance(self) -> bool:
        """Do the next piece of work; say whether there was any."""
        download = self._download
        if download is None or self._should_switch(download.stored):
            return self._begin(self._store.head())
        if not download.is_complete and download.advance():
            return True
        head = self._store.head()
        is_stored = head.find(download.stored.id) is not None
        is_written = head.writing is not None and head.writing.id == download.stored.id
        if not is_stored:
            if not is_written:  # given up by its writer, or pruned
                self._download = None
            return not is_written
        with contextlib.suppress(KeyError):  # pruned since
            self._arrive(self._store.complete(download))
        self._download = None
        return True

    def _begin(self, head: StoreIndex) -> bool:
        stored, self._download = self._choose(head), None
        if stored is None:
            return False
        with contextlib.suppress(KeyError):  # not yet, or no longer, there
            base = None
            if stored.base is not None:
                base = self._store.pull_base(stored, head, held=self._held.values())
            self._download = self._store.begin(stored, base, spare=self._spare)
            self._spare = None
        return self._download is not None

    def _should_switch(self, stored: Stored) -> bool:
        """Say whether someone waits for another version that could be had."""
        with self._changed:
            missing = self._wanted.keys() - self._held.keys()
        if not missing or stored.version in missing:
            return False
        head = self._store.head()
        return any(head.visible(version) is not None for version in missing)

    def _choose(self, head: StoreIndex) -> Stored | None:
        """Return what to pull next: what is waited for, else the newest, if it is not here."""
        with self._changed:
            wanted = [head.visible(version) for version in self._wanted]
            held = {loaded.id for loaded in self._held.values()}
        for stored in (*wanted, head.writing or head.latest):
            if stored is not None and stored.id not in held:
                return stored
        return None

    def _arrive(self, loaded: LoadedVersion) -> None:
        with self._changed:
            self._held.pop(loaded.version, None)
            self._held[loaded.version] = loaded
            for old in list(self._held)[:-_KEPT]:
                self._spare = _unused(self._held.pop(old))
            self._changed.notify_all()


def _unused(loaded: LoadedVersion) -> Array | None:
    """Return a version's memory if nobody holds an array in it any more."""
    flat = loaded.flat
    del loaded
    return flat if sys.getrefcount(flat) == _UNSHARED else None


def _too_late(version: Version, store: WeightStore, wait_s: float) -> StorageError:
    latest = store.latest()
    if latest is not None and latest > version:
        return PrunedError(
            f"version {version} of the weights is no longer in {store.place}, which holds version "
            f"{latest}: an engine asked too late; keep more versions with weights.keep"
        )
    there = "holds no version" if latest is None else f"holds version {latest}"
    return StorageError(
        f"version {version} of the weights did not arrive in {store.place} within {wait_s:g} s; it "
        f"{there}: is the trainer alive and does it publish there? weights.wait_s is the patience"
    )


def _unreadable(
    version: Version, store: WeightStore, wait_s: float, error: Exception
) -> StorageError:
    return StorageError(
        f"version {version} of the weights could not be read from {store.place} within "
        f"{wait_s:g} s: {error}; weights.wait_s is the patience"
    )
