"""Files and directories that are written whole or not at all, and stay after a power cut.

What is new is written beside its target under another name, and renamed when it is complete. A
reader, a second writer or a later run therefore meets the old content or the new, never a part of
either. A directory takes two renames, so for an instant there is none; `recover_directory` brings
the old one back if the program dies in that instant.

A disk keeps its own order: after a power cut a rename may be there and the bytes it names not, or
the other way round. So contents are synced before the rename, and the parent directory after it,
before anything that the new content replaces is removed. When a function here returns, its work
is on the disk. `rollart bench durability` cuts the power at every point of a run.

    write_file(path, data)             a file
    with written_whole(path) as draft  a directory, filled by the caller
    replace_directory(draft, path)     a directory that is filled already
    AppendFile(path)                   a file that only grows; a full disk makes it wait
"""

import errno
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rollart.clock import SystemClock
from rollart.errors import StorageError
from rollart.types import Json

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk that may take the same bytes later."""
_NOT_SYNCED = frozenset({errno.EINVAL, errno.ENOTSUP})
"""Errors of files and file systems that cannot be synced, such as pipes."""


def sync(path: Path) -> None:
    """Have the content of a file, or the names in a directory, on the disk before returning."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync_open(descriptor)
    finally:
        os.close(descriptor)


def _sync_open(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise


def sync_tree(directory: Path) -> None:
    """Sync every file and directory below one, then itself."""
    for path in directory.rglob("*"):
        if not path.is_symlink():
            sync(path)
    sync(directory)


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, and sync the names of those that are new."""
    missing = [each for each in (directory, *directory.parents) if not os.path.lexists(each)]
    directory.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync(each.parent)


def replace_directory(draft: Path, target: Path) -> None:
    """Give a draft its name, in place of the directory that has it."""
    old = _aside(target)
    shutil.rmtree(old, ignore_errors=True)
    if draft.is_dir():
        sync_tree(draft)
    if target.exists():
        target.rename(old)
    try:
        draft.rename(target)
    except OSError:
        recover_directory(target)
        raise
    # The old content is removed only when the new one has its name on the disk.
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_directory(target: Path) -> None:
    """Give a directory its name back if its replacement was cut short."""
    old = _aside(target)
    if old.exists() and not target.exists():
        old.rename(target)
        sync(target.parent)


def remove_directory(directory: Path) -> None:
    """Remove a directory in such a way that no part of it ever bears its name.

    It loses its name first: if the removal is cut short, `sweep` removes the rest.
    """
    doomed = directory.with_name(f"{_DOOMED}{directory.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    with suppress(OSError):
        directory.rename(doomed)
        sync(doomed.parent)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(parent: Path, prefixes: tuple[str, ...] = ()) -> None:
    """Remove the rest of what was being removed, and entries with other hidden prefixes."""
    for prefix in (_DOOMED, *prefixes):
        for path in parent.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)


_DOOMED = ".removed-"


def cut_short(parent: Path, prefix: str) -> list[Path]:
    """Return the directories of such names whose replacement was cut short."""
    found = parent.glob(f".{prefix}*.old")
    return [old.with_name(old.name.removeprefix(".").removesuffix(".old")) for old in found]


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


@contextmanager
def written_whole(directory: Path) -> Generator[Path]:
    """Give a directory to write to; it becomes `directory` on leaving, or nothing does."""
    try:
        make_directory(directory.parent)
        draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise StorageError(f"cannot write {directory}: {error}") from error
    try:
        yield draft
        draft.chmod(0o755)
        replace_directory(draft, directory)
    except OSError as error:
        fix = "make room, or choose another directory"
        raise StorageError(f"cannot write {directory}: {error}; {fix}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_file(
    path: Path, data: bytes | memoryview, *, draft: Path | None = None, is_durable: bool = True
) -> None:
    """Give a file this content; OSError, and the old content stays, if that cannot be.

    `draft` is the name it is written under first, in the same directory. What is worth nothing
    after a power cut need not be `is_durable`: syncing large files takes long.
    """
    beside = draft or path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        if is_durable:
            write_through(beside, data)
        else:
            beside.write_bytes(data)
        beside.replace(path)
        if is_durable:
            sync(path.parent)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_through(path: Path, data: bytes | memoryview) -> None:
    """Write a file of a draft so that it is on the disk before the draft gets its name."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        _sync_open(file.fileno())


def write_summary(path: Path, values: Mapping[str, Json]) -> None:
    """Write the figures a run ended with as one small JSON file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, (json.dumps(dict(values), indent=2) + "\n").encode())
    except OSError as error:
        raise StorageError(f"{path}: the summary cannot be written: {error}") from error


_BUFFER_BYTES = 1 << 18
_MOST_WAITING_BYTES = 1 << 26
"""Most bytes that wait in memory for a full disk; beyond it the run ends."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class AppendFile:
    r"""A file that only grows; what a full disk does not take waits in memory and is tried again.

    Any other error, and too much that waits, is a StorageError. Not for several threads, except
    `sync`.

    Example:
        >>> log = AppendFile(Path("runs/lake/events.jsonl"), what="the event log", warn=print)
        >>> log.append(b'{"t":0.5}\n')
        >>> log.flush()  # with the operating system
        >>> log.sync()   # on the disk

    """

    def __init__(
        self, path: Path, *, what: str, warn: Callable[[str], object] = lambda _: None
    ) -> None:
        self._path = path
        self._what = what
        self._warn = warn
        self._waiting = bytearray()
        self._now = SystemClock().now
        self._retry_s = 0.0
        self._pause_s = 0.0
        """How long the disk gets until the next try; 0: it takes what it is given."""
        try:
            make_directory(path.parent)
            is_new = not path.exists()
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            if is_new:
                sync(path.parent)
        except OSError as error:
            raise StorageError(f"{path}: {what} cannot be opened: {error}") from error

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        self._waiting += data
        if len(self._waiting) >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand what waits to the operating system, unless the disk was full a moment ago."""
        if self._waiting and (not self._pause_s or self._now() >= self._retry_s):
            self._write()

    def sync(self) -> None:
        """Have what was flushed on the disk; StorageError if a full disk did not take it."""
        if self._pause_s:
            raise self._refusal(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        try:
            _sync_open(self._descriptor)
        except OSError as error:
            raise self._refusal(error) from error

    def close(self) -> None:
        """Write what waits and close; StorageError if it is lost."""
        descriptor = self._descriptor
        if descriptor < 0:
            return
        try:
            self._write(is_last=True)
        finally:
            self._descriptor = -1
            with suppress(OSError):
                os.close(descriptor)

    def _write(self, *, is_last: bool = False) -> None:
        try:
            while self._waiting:
                written = os.write(self._descriptor, self._waiting)
                del self._waiting[:written]
        except OSError as error:
            is_too_much = len(self._waiting) > _MOST_WAITING_BYTES
            if error.errno not in FULL or is_too_much or is_last:
                raise self._refusal(error) from error
            self._back_off()
            return
        if self._pause_s:
            self._pause_s = 0.0
            self._warn(f"{self._path}: there is room again, nothing of {self._what} is lost")

    def _back_off(self) -> None:
        if not self._pause_s:
            most = _MOST_WAITING_BYTES >> 20
            self._warn(
                f"{self._path}: the disk is full: {self._what} waits in memory (up to {most} MiB) "
                "and is tried again; make room"
            )
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._retry_s = self._now() + self._pause_s

    def _refusal(self, error: OSError) -> StorageError:
        return StorageError(f"{self._path}: {self._what} cannot be written: {error}")
