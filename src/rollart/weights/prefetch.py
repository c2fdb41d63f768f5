"""Prefetch: weights on the engines' side, downloaded before the engines ask for them.

A `Prefetcher` polls the store's index in a thread of its own and downloads the newest version's
buckets as they appear, while the trainer still publishes and the engines still decode. `fetch` then
waits only for the rest. All engines of a process share one, so a version is downloaded once per
process. The two newest are kept, because engines that change weights one after another may need
both. A store that fails is retried with growing pauses, and the download continues where it
stopped; `fetch` reports the failure only after `wait_s`. Damaged weights are reported at once, and
so is a version that was pruned: versions are published in order, so one that is missing while a
later one is there does not come any more. Polling is the only way to notice a bucket: a store of
plain bytes notifies nobody.
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
"""Longest pause between retries after the store failed."""
_FINAL = (CorruptError, InvariantError)
"""Errors that a retry cannot fix."""
_KEPT = 2
_UNSHARED = 2
"""Reference count of an unshared array: one variable and the argument of getrefcount."""


class Source(Protocol):
    """Where engines get weights from.

    Example:
        source = open_source(store, wait_s=120.0)
        weights = source.fetch(Version(3))
        source.pulled_s(Version(3))  # seconds the download took

    """

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Wait for a version and return it; raise StorageError if it does not arrive in time."""
        ...

    def pulled_s(self, version: Version) -> float:
        """Return the seconds spent downloading a fetched version."""
        ...

    def close(self) -> None:
        """Stop background work."""
        ...


def open_source(store: WeightStore, *, wait_s: float = WAIT_S) -> Source:
    """Return the source for a store: with prefetching where versions must be downloaded."""
    if isinstance(store, BucketStore):
        return Prefetcher(store, wait_s=wait_s)
    return Direct(store, wait_s=wait_s)


class Direct:
    """Fetches on request: for stores whose versions are already on this machine."""

    def __init__(self, store: WeightStore, *, wait_s: float = WAIT_S) -> None:
        self._store = store
        self._wait_s = wait_s
        self._pulled: dict[Version, float] = {}

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Wait for a version and return it; raise StorageError if it does not arrive in time."""
        deadline_s = time.monotonic() + self._wait_s
        while True:
            # Read first: a later version that appears after a failed fetch may come with this one.
            latest = self._store.latest()
            start_s = time.perf_counter()
            try:
                weights = self._store.fetch(version)
            except KeyError:
                is_pruned = latest is not None and latest > version
                if is_pruned or time.monotonic() >= deadline_s:
                    raise _too_late(version, self._store, self._wait_s) from None
                time.sleep(_LOOK_EVERY_S)
            else:
                self._pulled = {version: time.perf_counter() - start_s}
                return weights

    def pulled_s(self, version: Version) -> float:
        """Return the seconds spent downloading a fetched version."""
        return self._pulled.get(version, 0.0)

    def close(self) -> None:
        """Do nothing."""


class Prefetcher:
    """Downloads new versions from a bucket store in a thread of its own."""

    def __init__(self, store: BucketStore, *, wait_s: float = WAIT_S) -> None:
        self._store = store
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._held: dict[Version, LoadedVersion] = {}
        self._download: Download | None = None
        self._spare: Array | None = None
        """Memory of a dropped version, to be reused."""
        self._wanted: dict[Version, int] = {}
        """Versions that are waited for, and by how many callers."""
        self._failed: dict[Version, Exception] = {}
        self._last_error: Exception | None = None
        """The error of the last attempt to read the store, if it failed."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="weights-puller", daemon=True)
        self._thread.start()

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Wait for a version and return it; raise StorageError if it does not arrive in time."""
        until_s = time.monotonic() + self._wait_s
        head = self._head(version, until_s)
        with self._changed:
            self._drop_replaced(version, head)
            self._failed.pop(version, None)
            if version not in self._held and _is_pruned(version, head):
                raise _too_late(version, self._store, self._wait_s)
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
            raise StorageError(f"cannot fetch weights version {version}: the prefetcher is closed")
        if last_error is not None:
            raise _unreadable(version, self._store, self._wait_s, last_error) from last_error
        raise _too_late(version, self._store, self._wait_s)

    def pulled_s(self, version: Version) -> float:
        """Return the seconds spent downloading a fetched version."""
        loaded = self._held.get(version)
        return 0.0 if loaded is None else loaded.pull_s

    def close(self) -> None:
        """Stop the thread; the store stays open."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _head(self, version: Version, until_s: float) -> StoreIndex:
        """Return the index, retrying until `until_s` if the store fails."""
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
        """Drop a version that was published again since, as by a resumed run."""
        loaded, stored = self._held.get(version), head.visible(version)
        if loaded is None or _is_pruned(version, head):
            return
        if stored is None or stored.id != loaded.id:
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
            except Exception as error:  # keep the thread alive: the store may recover
                self._last_error, pause_s, retry_s = (
                    error,
                    retry_s,
                    min(2 * retry_s, _LONGEST_PAUSE_S),
                )
            with self._changed:
                if not self._closed:
                    self._changed.wait(pause_s)

    def _fail_waiters(self, error: Exception) -> None:
        """Report an error to all waiting callers and start over."""
        self._download = None
        with self._changed:
            for version in self._wanted:
                self._failed[version] = error
            self._changed.notify_all()

    def _advance(self) -> bool:
        """Do the next piece of work; return whether there was any."""
        download = self._download
        if download is None or self._should_switch(download.stored):
            return self._begin(self._store.head())
        if not download.is_complete and download.advance():
            return True
        head = self._store.head()
        is_stored = head.find(download.stored.id) is not None
        is_written = head.writing is not None and head.writing.id == download.stored.id
        if not is_stored:
            if not is_written:  # its writer gave up, or it was pruned
                self._download = None
            return not is_written
        with contextlib.suppress(KeyError):  # pruned since
            self._arrive(self._store.complete(download))
        self._download = None
        return True

    def _begin(self, head: StoreIndex) -> bool:
        self._refuse_pruned(head)
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

    def _refuse_pruned(self, head: StoreIndex) -> None:
        """Report to waiting callers which versions were pruned while they waited."""
        with self._changed:
            missing = self._wanted.keys() - self._held.keys() - self._failed.keys()
            for version in [each for each in missing if _is_pruned(each, head)]:
                self._failed[version] = _too_late(version, self._store, self._wait_s)
                self._changed.notify_all()

    def _should_switch(self, stored: Stored) -> bool:
        """Return whether a caller waits for another version that is available."""
        with self._changed:
            missing = self._wanted.keys() - self._held.keys()
        if not missing or stored.version in missing:
            return False
        head = self._store.head()
        return any(
            head.visible(version) is not None or _is_pruned(version, head) for version in missing
        )

    def _choose(self, head: StoreIndex) -> Stored | None:
        """Return the version to download next: one that is waited for, else the newest."""
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


def _is_pruned(version: Version, head: StoreIndex) -> bool:
    """Say whether a version was there and is not any more."""
    latest, writing = head.latest, head.writing
    if writing is not None and writing.version <= version:
        return False  # a resumed run publishes its versions again
    return head.visible(version) is None and latest is not None and latest.version > version


def _unused(loaded: LoadedVersion) -> Array | None:
    """Return a version's memory if no array in it is referenced any more."""
    flat = loaded.flat
    del loaded
    return flat if sys.getrefcount(flat) == _UNSHARED else None


def _too_late(version: Version, store: WeightStore, wait_s: float) -> StorageError:
    latest = store.latest()
    if latest is not None and latest > version:
        return PrunedError(
            f"weights version {version} is no longer in {store.place}, whose newest is "
            f"{latest}: an engine asked too late; raise weights.keep to keep more versions"
        )
    newest = "it has no version" if latest is None else f"its newest version is {latest}"
    return StorageError(
        f"weights version {version} did not arrive in {store.place} within {wait_s:g} s; "
        f"{newest}: check that the trainer is alive and publishes there, or raise weights.wait_s"
    )


def _unreadable(
    version: Version, store: WeightStore, wait_s: float, error: Exception
) -> StorageError:
    return StorageError(
        f"weights version {version} could not be read from {store.place} within "
        f"{wait_s:g} s: {error}; check the store, or raise weights.wait_s"
    )
