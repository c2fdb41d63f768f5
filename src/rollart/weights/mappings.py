"""Data files as arrays of bytes, kept mapped for when a later version lies in the same file.

The pages of a new mapping take longer to come in than to read, so a file stays mapped until it has
no name any more. Its lock does not stay: it is held through a descriptor of its own, for as long as
any array of the file lives.
"""

import fcntl
import mmap
import os
import weakref
from pathlib import Path

import numpy as np

from rollart.ports import Array


class Mappings:
    """The files of a directory that were read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mapped: dict[int, mmap.mmap] = {}
        """By inode: a file that is written again keeps it, under another name."""

    def read(self, name: str) -> Array | None:
        """Return a file's bytes under a shared lock; None if it is gone or being written again."""
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
            fd = os.open(path, os.O_RDONLY)  # not the lock's: the mapping keeps it
            try:
                if os.fstat(fd).st_ino != inode:
                    raise FileNotFoundError(path)
                memory = self._mapped[inode] = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
        return memory


class _Lease:
    """Holds a mapping, and the lock on its file, while an array made of it lives."""

    def __init__(self, memory: mmap.mmap, lock: int) -> None:
        self._whole = np.frombuffer(memory, np.uint8)
        self.__array_interface__ = self._whole.__array_interface__
        weakref.finalize(self, os.close, lock)
