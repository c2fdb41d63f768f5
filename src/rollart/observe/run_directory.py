"""The run directory: claimed and locked before a run writes, and never overwritten.

An earlier run in the same directory is renamed with a number; a resumed run keeps its own
directory. Two runs never write to one directory: each holds a kernel lock (`flock`) on a file in
it that names the process. The lock ends with its process, however that ends, so no stale lock has
to be cleared.

A lock belongs to a file, not to its path. If the file was moved or removed before it was locked,
the lock is dropped and taken again. On a file system without locks a run continues without one.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from rollart.atomic_files import make_directory, sync
from rollart.errors import StorageError

CONFIG = "config.toml"
"""The file that marks a directory as a run's."""
LOG, METRICS, SUMMARY = "events.jsonl", "metrics.jsonl", "summary.json"
"""Files a run writes while it runs, and at its end."""


def claim_directory(
    directory: Path, *, mark: str = CONFIG, resumed: Path | None = None
) -> Path | None:
    """Create the directory; if an earlier run is there, rename it and return its new path.

    A directory is a run's if it has a file named `mark`.
    """
    moved = None
    try:
        is_own = resumed is not None and directory.resolve() in resumed.resolve().parents
        moved = None if is_own else place_of_earlier(directory, mark=mark)
        if moved is not None:
            directory.rename(moved)
            sync(directory.parent)
        make_directory(directory)
    except OSError as error:
        raise StorageError(
            f"{directory}: cannot be used as the run's directory (run.directory): {error}"
        ) from error
    return moved


def place_of_earlier(directory: Path, *, mark: str = CONFIG) -> Path | None:
    """Return where a new run moves the earlier one of its directory; None if there is none.

    Example:
        >>> place_of_earlier(Path("runs/quickstart"))
        PosixPath('runs/quickstart.1')

    """
    return _free_name(directory) if (directory / mark).exists() else None


def check_writable(directory: Path) -> None:
    """Raise a StorageError if the directory cannot be created or written; leave no trace."""
    place = directory.absolute()
    missing = [each for each in (place, *place.parents) if not os.path.lexists(each)]
    try:
        place.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise StorageError(
            f"{directory}: cannot be used as the run's directory (run.directory): {error.strerror}"
        ) from error
    finally:
        with suppress(OSError):  # not empty: another run has started there
            for each in missing:
                each.rmdir()


def _free_name(directory: Path) -> Path:
    number = 1
    while (target := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    return target


LOCK = ".lock"
"""The file that is locked; it contains the process id of its holder."""
_TRIES = 10
"""How often to try again when the file was removed before it could be locked."""


_locked: set[int] = set()
"""Files this process has locked. A forked child inherits them and would keep them locked."""


class DirectoryLock:
    """A lock on a directory that only this process may write to."""

    def __init__(self, directory: Path) -> None:
        """Lock the directory, or raise a StorageError that names the holder."""
        self._directory = directory
        self._file = _lock(directory)

    def relock(self, moved: Path) -> None:
        """Lock the new directory after the locked one was renamed to `moved`; unlock that."""
        old, self._file = self._file, None
        _release(moved, old)
        self._file = _lock(self._directory)

    def release(self) -> None:
        """Unlock the directory."""
        file, self._file = self._file, None
        _release(self._directory, file)


@contextmanager
def lock_directory(directory: Path) -> Generator[DirectoryLock]:
    """Lock the run directory, creating it; remove it again if it stays empty."""
    place = directory.absolute()
    missing = [each for each in (place, *place.parents) if not os.path.lexists(each)]
    try:
        make_directory(place)
    except OSError as error:
        raise StorageError(
            f"{directory}: cannot be used as the run's directory (run.directory): {error.strerror}"
        ) from error
    lock = DirectoryLock(directory)
    try:
        yield lock
    finally:
        lock.release()
        with suppress(OSError):  # not empty: the run is in it
            for each in missing:
                each.rmdir()


def check_free(directory: Path) -> None:
    """Raise a StorageError if a run holds the directory; change nothing."""
    holder = find_holder(directory)
    if holder is not None:
        raise _refusal(directory, holder)


def find_holder(directory: Path) -> str | None:
    """Return the process that holds a directory, or None."""
    try:
        file = os.open(directory / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(file)
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _lock(directory: Path) -> int | None:
    """Return the locked file, or None if the file system has no locks."""
    path = directory / LOCK
    for _ in range(_TRIES):
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            with suppress(OSError):  # another run has ended and removed its empty directory
                directory.mkdir(parents=True, exist_ok=True)
            continue
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            os.close(file)
            raise _refusal(directory, holder) from None
        except OSError:
            _release(directory, file)
            return None
        if _is_at(path, file):
            with suppress(OSError):  # on a full disk the lock still works, only without a name
                os.truncate(file, 0)
                os.pwrite(file, str(os.getpid()).encode(), 0)
            _locked.add(file)
            return file
        os.close(file)
    return None


def _release(directory: Path, file: int | None) -> None:
    """Remove and unlock the file.

    Removed while still locked: afterwards it might be the file another run has locked.
    """
    if file is None:
        return
    with suppress(OSError):
        if _is_at(directory / LOCK, file):
            (directory / LOCK).unlink()
    _locked.discard(file)
    os.close(file)


def _close_in_child() -> None:
    for file in _locked:
        with suppress(OSError):
            os.close(file)
    _locked.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _is_at(path: Path, file: int) -> bool:
    """Return whether an open file is the one at this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except OSError:
        return False


def _holder(file: int) -> str:
    words = os.pread(file, 32, 0).decode(errors="replace").strip()
    return f"process {words}" if words.isdigit() else "another process"


def _refusal(directory: Path, holder: str) -> StorageError:
    return StorageError(
        f"{directory} is in use by {holder}: choose another run.name or run.directory, or wait "
        "until it ends"
    )
