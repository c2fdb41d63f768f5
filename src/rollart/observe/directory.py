"""A run's directory: claimed before anything is written, and never overwritten.

An earlier run found there is moved aside under a number, whole; a resumed run goes on in its own.
"""

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from rollart.errors import StorageError

CONFIG = "config.toml"
"""What tells that a directory is a run's."""


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
