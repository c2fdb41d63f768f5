"""Weights in buckets, in any store of named bytes.

    publish:  index names the id ─► layout ─► bucket 0, 1 … ─► manifest ─► index shows the version
    fetch:    index ─► layout ─► buckets, as they appear ─► manifest: checksums match ─► arrays

The index is the value under the key `head` (see `weights.index`). Everything of a version is
written before the index that shows it, and none of it is overwritten, so a reader gets a complete
version or none. Readers write nothing: a dead one blocks nobody. What a dead writer left is named
in the index, and the next publication removes it. One process writes at a time.

The index names the run whose versions these are. A writer takes a place over that is empty, that a
run has released at its end, or whose writer is known to be dead; it removes what is there. Any
other place of another run is refused, by writers and readers alike, each time they look.

With `delta`, buckets hold the changes to the previous version, and one version in `LONGEST_CHAIN`
is written in full; a version is stored as long as a visible one is built on it.
"""

import contextlib
import json
import os
import secrets
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from rollart.errors import ConfigError, StorageError
from rollart.ports import Array, Blobs
from rollart.types import ArraySpec, Version
from rollart.weights.blobs.files import may_live, this_machine
from rollart.weights.download import Download, LoadedVersion, encode, read_json
from rollart.weights.index import HEAD, Stored, StoreIndex, decode_index
from rollart.weights.layout import ALIGNMENT_BYTES, Layout, cut, in_order, lay_out, specs_of

BUCKET_BYTES = 64 * 2**20
LONGEST_CHAIN = 8
"""Most versions in a chain: one written in full and those built on it."""


class BucketStore:
    """Stores the newest versions as buckets in `blobs`."""

    def __init__(
        self,
        blobs: Blobs,
        *,
        keep: int = 2,
        bucket_bytes: int = BUCKET_BYTES,
        delta: bool = False,
        run: str = "",
    ) -> None:
        """Use `blobs` for a run; without a name, versions of any run can be read."""
        if keep < 1:
            raise ConfigError("weights.keep", keep, "keep at least 1 version")
        if bucket_bytes < ALIGNMENT_BYTES or bucket_bytes % ALIGNMENT_BYTES:
            fix = f"must be a multiple of {ALIGNMENT_BYTES}"
            raise ConfigError("weights.bucket_bytes", bucket_bytes, fix)
        self.blobs = blobs
        self._keep = keep
        self._bucket_bytes = bucket_bytes
        self._delta = delta
        self._run = run
        self._process = f"{this_machine()}-{os.getpid()}"
        self._last: LoadedVersion | None = None
        """The version published last: the base of the next one."""

    @property
    def place(self) -> str:
        """A description of the store and its location, for messages."""
        return self.blobs.place

    def publish(self, version: Version, weights: Mapping[str, Array]) -> None:
        """Store a version and make it visible; older ones beyond the newest `keep` are pruned."""
        self.stream(version, specs_of(weights), weights.items())

    def stream(
        self,
        version: Version,
        specs: Mapping[str, ArraySpec],
        arrays: Iterable[tuple[str, Array]],
    ) -> None:
        """Publish a version array by array, holding at most one bucket in memory."""
        layout = lay_out(specs, bucket_bytes=self._bucket_bytes)
        head = self._recovered()
        base = self._base(head, layout)
        stored = Stored(
            id=f"{version}-{secrets.token_hex(6)}",
            version=version,
            buckets=layout.buckets,
            base=None if base is None else base.id,
        )
        try:
            self._put_head(replace(head, writing=stored))
            after = self._push(stored, layout, cut(layout, in_order(specs, arrays)), head)
        except BaseException:
            self._last = None
            with contextlib.suppress(
                StorageError
            ):  # report the first error, not one of the cleanup
                self._discard(stored)
                self._put_head(head)
            raise
        for old in head.stored:
            if after.find(old.id) is None:
                self._discard(old)

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Return a visible version; raise KeyError if it is not (or no longer) stored."""
        head = self.head()
        stored = head.visible(version)
        if stored is None:
            raise KeyError(version)
        return self.pull(stored, head).arrays

    def latest(self) -> Version | None:
        """Return the newest visible version."""
        latest = self.head().latest
        return None if latest is None else latest.version

    def close(self) -> None:
        """Close the store; visible versions stay in it."""
        self._last = None
        self.blobs.close()

    def release(self) -> None:
        """Let other runs use the place; visible versions stay until one of them does."""
        head = self._read_head()
        if self._run and head.run == self._run:
            self._put_head(replace(head, run="", process=""))

    def head(self) -> StoreIndex:
        """Return the index: which versions of this run are stored now."""
        head = self._read_head()
        if not self._run or head.run == self._run:
            return head
        if head.run:
            raise self._other_run(head)
        return StoreIndex()

    def _read_head(self) -> StoreIndex:
        try:
            return decode_index(bytes(self.blobs.get(HEAD)), place=self.blobs.place)
        except KeyError:
            return StoreIndex()

    def _other_run(self, head: StoreIndex) -> StorageError:
        own = f"not of {self._run}" if self._run else "which still writes"
        return StorageError(
            f"{self.blobs.place} holds the weights of the run {head.run}, {own}: give each run a "
            "weights.place of its own; if that run has ended, empty the place"
        )

    def begin(
        self, stored: Stored, base: LoadedVersion | None, *, spare: Array | None = None
    ) -> Download:
        """Start downloading a version that may be incomplete; KeyError if it has no layout yet.

        `spare` is unused memory for the version's bytes.
        """
        layout = Layout.decoded(read_json(self.blobs, stored.layout_key))
        return Download(blobs=self.blobs, stored=stored, base=base, layout=layout, spare=spare)

    def pull(self, stored: Stored, head: StoreIndex) -> LoadedVersion:
        """Download a stored version, and first its base; KeyError if it was pruned."""
        base = None if stored.base is None else self.pull_base(stored, head, held=())
        try:
            download = self.begin(stored, base)
        except KeyError as missing:
            raise self._missing(stored, str(missing.args[0])) from missing
        return self.complete(download)

    def pull_base(
        self, stored: Stored, head: StoreIndex, *, held: Iterable[LoadedVersion]
    ) -> LoadedVersion:
        """Return the base of a version, downloading it unless it is in `held`."""
        base = None if stored.base is None else head.find(stored.base)
        if base is None:
            raise KeyError(stored.version)
        return next((each for each in held if each.id == base.id), None) or self.pull(base, head)

    def complete(self, download: Download) -> LoadedVersion:
        """Download the rest of a completely stored version; KeyError if it was pruned."""
        try:
            while not download.is_complete:
                if not download.advance():
                    raise KeyError(download.stored.bucket_key(len(download.checksums)))
            return download.finish()
        except KeyError as missing:
            raise self._missing(download.stored, str(missing.args[0])) from missing

    def _missing(self, stored: Stored, key: str) -> KeyError | StorageError:
        """Return the error for a missing value: pruned, or deleted by someone else."""
        if self._read_head().find(stored.id) is None:
            return KeyError(stored.version)
        return StorageError(
            f"{key} of weights version {stored.version} was deleted from {self.blobs.place}: "
            "let no other program delete there, and publish the version again"
        )

    def _push(
        self, stored: Stored, layout: Layout, buckets: Iterable[Array], head: StoreIndex
    ) -> StoreIndex:
        """Write a version's values, and last the index that shows it; return that index."""
        self._put_json(stored.layout_key, layout.encoded())
        width = _number_bytes(layout)
        base = self._last if stored.base is not None else None
        copy = np.empty(layout.total_bytes, np.uint8) if self._delta else None
        checksums: list[int] = []
        for index, bucket in enumerate(buckets):
            checksums.append(zlib.crc32(bucket.data))
            if copy is not None:
                copy[layout.span(index)] = bucket
            data = bucket.data
            if base is not None:
                data = memoryview(encode(bucket, base.flat[layout.span(index)], width=width))
            self.blobs.put(stored.bucket_key(index), data)
            del bucket, data  # they may be views of an array: release its memory now
        self._put_json(stored.manifest_key, {**layout.encoded(), "crc32": checksums})
        after = head.with_version(stored, keep=self._keep)
        self._put_head(after)
        if copy is not None:
            self._last = LoadedVersion(
                id=stored.id, version=stored.version, flat=copy, layout=layout, pull_s=0.0
            )
        return after

    def _base(self, head: StoreIndex, layout: Layout) -> LoadedVersion | None:
        """Return the version that the next one may be written as changes to."""
        if self._last is None or self._last.layout != layout:
            return None
        stored = head.find(self._last.id)
        if stored is None or len(head.chain(stored)) >= LONGEST_CHAIN:
            return None
        return self._last

    def _recovered(self) -> StoreIndex:
        """Return the index, as this run's, after removing what a dead writer left."""
        head = self._read_head()
        if head.run != self._run:
            return self._taken_over(head)
        if head.writing is not None:
            self._discard(head.writing)
        return replace(head, writing=None, process=self._process)

    def _taken_over(self, head: StoreIndex) -> StoreIndex:
        """Make the place this run's; refuse if another one may still use it."""
        if head.run and may_live(head.process):
            raise self._other_run(head)
        own = StoreIndex(run=self._run, process=self._process)
        self._put_head(own)
        for each in (*head.stored, *([head.writing] if head.writing else [])):
            self._discard(each)
        return own

    def _discard(self, stored: Stored) -> None:
        for key in stored.keys:
            self.blobs.delete(key)

    def _put_head(self, head: StoreIndex) -> None:
        self.blobs.put(HEAD, head.encode())

    def _put_json(self, key: str, value: object) -> None:
        self.blobs.put(key, json.dumps(value).encode())


def _number_bytes(layout: Layout) -> int:
    """Return the item size of the largest array, by which changes are sorted into planes."""
    sizes = {
        name: (int(np.prod(entry["shape"])) * np.dtype(entry["dtype"]).itemsize, entry["dtype"])
        for name, entry in layout.arrays.items()
    }
    return np.dtype(max(sizes.values(), default=(0, "<f4"))[1]).itemsize
