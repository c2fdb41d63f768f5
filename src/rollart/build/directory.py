"""A run's directory: claimed before anything is written, and never overwritten.

An earlier run found there is moved aside under a number, whole; a resumed run goes on in its own.
"""

from pathlib import Path

from rollart.errors import StorageError

_MARK = "config.toml"


def claim_directory(directory: Path, *, resumed: Path | None) -> Path | None:
    """Make the directory; return where an earlier run found there was moved to."""
    moved = None
    try:
        is_own = resumed is not None and directory.resolve() in resumed.resolve().parents
        if (directory / _MARK).exists() and not is_own:
            moved = _free_name(directory)
            directory.rename(moved)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{directory}: cannot be used as the run's directory: {error}"
        ) from error
    return moved


def _free_name(directory: Path) -> Path:
    number = 1
    while (target := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    return target
