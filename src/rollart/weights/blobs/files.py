"""FileBlobs: bytes as files of a directory on a local disk, in shared memory or on a shared mount.

A file is written under a temporary name and renamed when complete, so a reader never sees part of
one. Reading maps the file, so bytes come from the page cache; a mapped file that is deleted stays
readable.
"""

import mmap
import os
import re
import secrets
from pathlib import Path

from rollart.atomic_files import write_file
from rollart.errors import InvariantError, StorageError

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PART = ".part-"


def check_key(key: str) -> str:
    """Return a key that is safe as a file name; raise InvariantError for others."""
    if _KEY.fullmatch(key) is None:
        raise InvariantError(f"{key!r} is not a valid key: use letters, digits, '.', '-' and '_'")
    return key


class FileBlobs:
    """Stores every value as a file of `directory`."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_parts()
        except OSError as error:
            raise StorageError(
                f"cannot use the weight directory {self._directory}: {error.strerror}"
            ) from error

    @property
    def place(self) -> str:
        """A description of the store and its location, for messages."""
        return f"the directory {self._directory}"

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store bytes under a key, replacing the old value."""
        path = self._directory / check_key(key)
        part = self._directory / f"{_PART}{this_machine()}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            write_file(path, data, draft=part, is_durable=False)
        except OSError as error:
            raise StorageError(
                f"cannot write {len(data)} bytes of weights to {self.place}: {error.strerror}; "
                "free space there or choose another directory"
            ) from error

    def get(self, key: str) -> bytes | memoryview:
        """Return the bytes under a key; raise KeyError if there are none."""
        path = self._directory / check_key(key)
        try:
            with path.open("rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    return b""
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except FileNotFoundError:
            raise KeyError(key) from None
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error

    def delete(self, key: str) -> None:
        """Remove a key, if it exists."""
        path = self._directory / check_key(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete {path}: {error.strerror}") from error

    def close(self) -> None:
        """Do nothing: no file is held open."""

    def _remove_parts(self) -> None:
        """Remove the temporary files of writers that are known to be dead."""
        prefix = f"{_PART}{this_machine()}-"
        for part in self._directory.glob(f"{prefix}*"):
            pid = part.name.removeprefix(prefix).partition("-")[0]
            if not may_live(f"{this_machine()}-{pid}"):
                part.unlink(missing_ok=True)


def this_machine() -> str:
    """Return a name of this machine and pid namespace: process ids are unique only within it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
        return f"{boot}{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return "unknown"


def may_live(process: str) -> bool:
    """Say whether a process, named MACHINE-PID, may still run: only its own machine knows."""
    machine, _, pid = process.rpartition("-")
    return machine != this_machine() or Path(f"/proc/{pid}").exists()
