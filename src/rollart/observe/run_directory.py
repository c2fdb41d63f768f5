"""A run's directory: claimed before anything is written, and never overwritten.

An earlier run found there is moved aside under a number, whole; a resumed run goes on in its own.

The hold on a run's directory: two runs never write into one.

A lock of the kernel's on a file in the directory, which says who holds it. It ends with the process
that took it, however that ends, so there is none to be cleared away. The lock is on a file, not on
a name: one got on a file that has been moved or removed meanwhile is given up and sought again.
Where a file system has no locks a run goes on without.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from rollart.errors import StorageError

CONFIG = "config.toml"
"""What tells that a directory is a run's."""
LOG, METRICS, SUMMARY = "events.jsonl", "metrics.jsonl", "summary.json"
"""What a run writes as it goes, and at its end."""


def claim_directory(
    directory: Path, *, mark: str = CONFIG, resumed: Path | None = None
) -> Path | None:
    """Make the directory; return where an earlier run found there was moved to.

    A directory is a run's if it holds a file of the name `mark`.
    """
    moved = None
    try:
        is_own = resumed is not None and directory.resolve() in resumed.resolve().parents
        if (directory / mark).exists() and not is_own:
            moved = _free_name(directory)
            directory.rename(moved)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{directory}: cannot be used as the run's directory (run.directory): {error}"
        ) from error
    return moved


def check_writable(directory: Path) -> None:
    """Refuse a directory that cannot be made or written in, by trying; leave nothing there."""
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
        with suppress(OSError):  # another run has begun there
            for each in missing:
                each.rmdir()


def _free_name(directory: Path) -> Path:
    number = 1
    while (target := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    return target


LOCK = ".lock"
"""The file that is locked; it holds the process id of who did."""
_TRIES = 10
"""How often a file that is gone when it is locked is sought again."""


_held: set[int] = set()
"""Files this process has locked. A child made by fork shares them, and would hold them on."""


class DirectoryLock:
    """A directory that this process alone writes into."""

    def __init__(self, directory: Path) -> None:
        """Take the directory, or say who has it."""
        self._directory = directory
        self._file = _lock(directory)

    def move_on(self, moved: Path) -> None:
        """Take the directory anew after the one held was moved aside, and let go of that."""
        held, self._file = self._file, None
        _release(moved, held)
        self._file = _lock(self._directory)

    def release(self) -> None:
        """Let go of the directory."""
        held, self._file = self._file, None
        _release(self._directory, held)


@contextmanager
def lock_directory(directory: Path) -> Generator[DirectoryLock]:
    """Hold a directory, made if it is not there; leave none behind that nothing came into."""
    place = directory.absolute()
    missing = [each for each in (place, *place.parents) if not os.path.lexists(each)]
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{directory}: cannot be used as the run's directory (run.directory): {error.strerror}"
        ) from error
    hold = DirectoryLock(directory)
    try:
        yield hold
    finally:
        hold.release()
        with suppress(OSError):  # the run is in it
            for each in missing:
                each.rmdir()


def check_free(directory: Path) -> None:
    """Refuse a directory that a run is writing into, without changing anything."""
    holder = find_holder(directory)
    if holder is not None:
        raise _refusal(directory, holder)


def find_holder(directory: Path) -> str | None:
    """Name the process that holds a directory; None if none does."""
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
    """Return the locked file; None where there are no locks."""
    path = directory / LOCK
    for _ in range(_TRIES):
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            with suppress(OSError):  # another run that ended took its empty directory along
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
            with suppress(OSError):  # a full disk: the lock holds without a name
                os.truncate(file, 0)
                os.pwrite(file, str(os.getpid()).encode(), 0)
            _held.add(file)
            return file
        os.close(file)
    return None


def _release(directory: Path, file: int | None) -> None:
    """Remove the file while no other can have locked it, and let go."""
    if file is None:
        return
    with suppress(OSError):
        if _is_at(directory / LOCK, file):
            (directory / LOCK).unlink()
    _held.discard(file)
    os.close(file)


def _let_go_in_child() -> None:
    for file in _held:
        with suppress(OSError):
            os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


def _is_at(path: Path, file: int) -> bool:
    """Say whether an open file is the one of this name."""
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
