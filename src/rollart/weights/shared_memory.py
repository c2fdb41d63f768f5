"""Weights as memory-mapped files that every process of the machine reads without a copy.

    3.json               manifest of version 3: data file, names, shapes, dtypes, offsets, checksum
    3-5f0c9a1e2b7d.data  its arrays, each aligned to 64 bytes

A version is visible when its manifest is, and the manifest is renamed into place after the data is
complete, so a reader never sees a partial version; a data file that a dead writer left has no
manifest, and the next writer removes it. The file of a pruned version is reused only while no
reader has it mapped: a reader holds a shared `flock` as long as any of its arrays lives, and the
writer needs the exclusive lock. The kernel drops a dead process's locks, so a dead reader blocks
nothing. One process writes to a directory at a time.
"""

import contextlib
import fcntl
import json
import mmap
import os
import re
import secrets
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollart.atomic_files import write_file
from rollart.errors import ConfigError, StorageError
from rollart.ports import Array
from rollart.types import ArraySpec, Version
from rollart.weights.layout import in_order, place_arrays, specs_of, view_arrays


class Mappings:
    """The data files of a directory that this process has read, kept mapped.

    The pages of a new mapping take longer to load than to read, so a file stays mapped until it is
    deleted, in case a later version reuses it. The lock is held separately, through a descriptor
    of its own, for as long as any array of the file lives.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mapped: dict[int, mmap.mmap] = {}
        """By inode: a reused file keeps its inode under another name."""

    def read(self, name: str) -> Array | None:
        """Return a file's bytes under a shared lock; None if it is deleted or being rewritten."""
        path = self._directory / name
        try:
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            memory = self._map(path, os.fstat(lock).st_ino)
            return np.asarray(_Lease(memory, lock))
        except (BlockingIOError, FileNotFoundError):
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise

    def _map(self, path: Path, inode: int) -> mmap.mmap:
        with os.scandir(self._directory) as entries:
            named = {entry.inode() for entry in entries}
        self._mapped = {each: memory for each, memory in self._mapped.items() if each in named}
        memory = self._mapped.get(inode)
        if memory is None:
            fd = os.open(
                path, os.O_RDONLY
            )  # not the lock's descriptor: the mapping outlives the lock
            try:
                if os.fstat(fd).st_ino != inode:
                    raise FileNotFoundError(path)
                memory = self._mapped[inode] = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
        return memory


class _Lease:
    """Holds a mapping, and the lock on its file, while an array of it lives."""

    def __init__(self, memory: mmap.mmap, lock: int) -> None:
        self._whole = np.frombuffer(memory, np.uint8)
        self.__array_interface__ = self._whole.__array_interface__
        weakref.finalize(self, os.close, lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A data file this process writes, mapped once and kept.

    Example:
        segment = Segment(path=Path("/dev/shm/run/3-5f0c9a1e2b7d.data"), fd=11, memory=memory)
        segment.is_unread()  # False while a reader has it mapped

    """

    path: Path
    fd: int
    memory: mmap.mmap

    def renamed(self, path: Path) -> "Segment":
        """Return the segment under another file name."""
        self.path.rename(path)
        return Segment(path=path, fd=self.fd, memory=self.memory)

    def is_unread(self) -> bool:
        """Take the exclusive lock; return False if a reader has the file mapped."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Unmap and close; the file stays."""
        with contextlib.suppress(
            BufferError
        ):  # a traceback may still hold an array: it is freed with it
            self.memory.close()
        os.close(self.fd)


class SharedMemoryStore:
    """Stores the newest versions as files under `directory`.

    New pages cost several times the copy itself, so the writer reuses the file of a pruned version
    if it gets the exclusive lock, and otherwise deletes it (existing mappings stay valid). The
    writer removes the manifest before it tries for that lock, and a reader reads the manifest again
    after it has its own lock: a manifest that is still there proves that the data is.
    """

    def __init__(self, directory: str | Path, keep: int = 2, *, checksum: bool = False) -> None:
        if keep < 1:
            raise ConfigError("weights.keep", keep, "keep at least 1 version")
        self._directory = Path(directory)
        self._mappings = Mappings(self._directory)
        self._keep = keep
        self._checksum = checksum
        self._segments: dict[Version, Segment] = {}
        self._spare: Segment | None = None
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot create the weight directory {self._directory}: {error.strerror}"
            ) from error

    @property
    def place(self) -> str:
        """A description of the store and its location, for messages."""
        return f"the shared memory {self._directory}"

    def publish(self, version: Version, weights: Mapping[str, Array]) -> None:
        """Store a version and make it visible; older ones beyond the newest `keep` are pruned."""
        self.stream(version, specs_of(weights), weights.items())

    def stream(
        self,
        version: Version,
        specs: Mapping[str, ArraySpec],
        arrays: Iterable[tuple[str, Array]],
    ) -> None:
        """Publish a version array by array, copying each to its position."""
        entries, total_bytes = place_arrays(specs)
        try:
            self._remove_orphans()
            segment = self._take_segment(version, total_bytes)
            try:
                checksum = self._fill(segment, entries, in_order(specs, arrays))
                fcntl.flock(segment.fd, fcntl.LOCK_SH)
                self._write_manifest(
                    version,
                    {
                        "version": version,
                        "data": segment.path.name,
                        "bytes": total_bytes,
                        "crc32": checksum,
                        "arrays": entries,
                    },
                )
            except BaseException:
                segment.path.unlink(missing_ok=True)
                segment.release()
                raise
            fcntl.flock(segment.fd, fcntl.LOCK_UN)
            replaced = self._segments.pop(version, None)
            self._segments[version] = segment
            if replaced is not None:
                self._retire(replaced)
            self._prune()
        except OSError as error:
            raise StorageError(
                f"cannot store {total_bytes} bytes of weights in {self._directory}: "
                f"{error.strerror}; free space there or choose another directory"
            ) from error

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Return a visible version as read-only views of the mapped file; KeyError if missing."""
        while True:
            manifest = self._read_manifest(version)
            if manifest is None:
                raise KeyError(version)
            name = str(manifest["data"])
            memory = self._mappings.read(name)
            if self._read_manifest(version) == manifest:
                if memory is None:
                    path = self._directory / name
                    raise StorageError(
                        f"weights version {version} was deleted from {path}: let no other program "
                        "delete there, and publish the version again"
                    )
                return self._views(manifest, memory)

    def latest(self) -> Version | None:
        """Return the newest visible version."""
        return max(self._visible(), default=None)

    def close(self) -> None:
        """Close the mappings for writing; visible versions stay for other processes."""
        if self._spare is not None:
            self._spare.path.unlink(missing_ok=True)
            self._spare.release()
            self._spare = None
        for segment in self._segments.values():
            segment.release()
        self._segments.clear()

    def _take_segment(self, version: Version, total_bytes: int) -> Segment:
        path = self._directory / f"{version}-{secrets.token_hex(6)}.data"
        spare, self._spare = self._spare, None
        if spare is not None:
            if len(spare.memory) == total_bytes and spare.path.exists():
                return spare.renamed(path)
            spare.path.unlink(missing_ok=True)
            spare.release()
        return _new_segment(path, total_bytes)

    def _fill(
        self,
        segment: Segment,
        entries: Mapping[str, dict[str, Any]],
        arrays: Iterable[tuple[str, Array]],
    ) -> int | None:
        for name, array in arrays:
            offset = int(entries[name]["offset"])
            view = np.ndarray(array.shape, array.dtype, buffer=segment.memory, offset=offset)
            np.copyto(view, array)
        return zlib.crc32(segment.memory) if self._checksum else None

    def _write_manifest(self, version: Version, manifest: Mapping[str, object]) -> None:
        path = self._manifest_path(version)
        data = json.dumps(manifest).encode()
        write_file(path, data, draft=path.with_suffix(".json.part"), is_durable=False)

    def _prune(self) -> None:
        for version in sorted(self._visible())[: -self._keep]:
            manifest = self._read_manifest(version)
            self._manifest_path(version).unlink(missing_ok=True)
            segment = self._segments.pop(version, None)
            if segment is not None:
                self._retire(segment)
            elif manifest is not None:
                (self._directory / str(manifest["data"])).unlink(missing_ok=True)

    def _retire(self, segment: Segment) -> None:
        if self._spare is None and segment.is_unread():
            self._spare = segment
        else:
            segment.path.unlink(missing_ok=True)
            segment.release()

    def _remove_orphans(self) -> None:
        named = {
            manifest["data"]
            for version in self._visible()
            if (manifest := self._read_manifest(version)) is not None
        }
        for path in self._directory.glob("*.data"):
            if path.name not in named and (self._spare is None or path != self._spare.path):
                path.unlink(missing_ok=True)
        for path in self._directory.glob("*.json.part"):
            path.unlink(missing_ok=True)

    def _visible(self) -> list[Version]:
        return [
            Version(int(path.stem))
            for path in self._directory.glob("*.json")
            if path.stem.isdecimal()
        ]

    def _manifest_path(self, version: Version) -> Path:
        return self._directory / f"{version}.json"

    def _read_manifest(self, version: Version) -> dict[str, Any] | None:
        path = self._manifest_path(version)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise StorageError(f"the weight manifest {path} is damaged: {error}") from error

    def _views(self, manifest: Mapping[str, Any], memory: Array) -> Mapping[str, Array]:
        path = self._directory / str(manifest["data"])
        if manifest["crc32"] is not None and zlib.crc32(memory.data) != manifest["crc32"]:
            raise StorageError(f"the weights in {path} do not match their checksum")
        try:
            return view_arrays(manifest["arrays"], memory)
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"the weights in {path} do not match their manifest") from error


def _new_segment(path: Path, total_bytes: int) -> Segment:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        # Without its pages reserved, a full file system would end the process with SIGBUS.
        os.posix_fallocate(fd, 0, total_bytes)
        memory = mmap.mmap(fd, total_bytes, access=mmap.ACCESS_WRITE)
    except BaseException:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return Segment(path=path, fd=fd, memory=memory)


MEMORY_FILES = Path("/dev/shm")  # noqa: S108 - the kernel's place for shared memory
_NAME = re.compile(r"rollart-.*-(?P<namespace>\d+)-(?P<pid>\d+)-[^-]+")


def shared_directory(run_name: str) -> Path:
    """Create a directory for this process, in shared memory if that is writable.

    The name contains the process id and its pid namespace. Other processes may remove a directory
    only if its process is known to be dead, and a process of another namespace (a container that
    shares /dev/shm) cannot know that.
    """
    plain_name = re.sub(r"[^A-Za-z0-9_]+", "_", run_name)[:64]
    prefix = f"rollart-{plain_name}-{_pid_namespace()}-{os.getpid()}-"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_base()))


def remove_directory(directory: Path) -> None:
    """Remove a run's directory; files that are already mapped stay readable."""
    shutil.rmtree(directory, ignore_errors=True)


def remove_leftovers() -> tuple[Path, ...]:
    """Remove the directories of this user's dead runs; return the removed paths."""
    removed: list[Path] = []
    for path in sorted(_base().glob("rollart-*")):
        match = _NAME.fullmatch(path.name)
        if match is None or int(match["namespace"]) != _pid_namespace():
            continue
        if _is_own_directory(path) and not _is_alive(int(match["pid"])):
            remove_directory(path)
            removed.append(path)
    return tuple(removed)


def _base() -> Path:
    if MEMORY_FILES.is_dir() and os.access(MEMORY_FILES, os.W_OK | os.X_OK):
        return MEMORY_FILES
    return Path(tempfile.gettempdir())


def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _is_own_directory(path: Path) -> bool:
    try:
        return not path.is_symlink() and path.is_dir() and path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
