"""Drafts: directories written by all ranks beside their place and renamed into it when whole.

A name therefore always holds a whole directory: a full disk costs the new one, never the old. If
the disk refuses any rank, all of them raise the same message, so the group stays of one mind. All
ranks must see one file system.
"""

import errno
import os
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from rollart.directories import recover_directory, replace_directory
from rollart.errors import StorageError
from rollart.training.world import World, told_to_all

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A directory being written."""

    path: Path
    """Where to write."""
    target: Path
    """What it will be called."""
    world: World
    what: str
    """What it is, for messages."""

    def each(self, work: Callable[[], object]) -> None:
        """Do this rank's part; raise on all ranks if it fails on any."""
        with told_to_all(self.world, StorageError):
            try:
                work()
            except (OSError, SafetensorError) as error:
                raise StorageError(_complaint(error, self.target, self.what)) from error

    def first(self, work: Callable[[], object]) -> None:
        """Do what one rank does for all; raise on all ranks if it fails."""
        self.each(work if self.world.is_first else lambda: None)


@contextmanager
def drafted(directory: Path, *, world: World, what: str) -> Generator[Draft]:
    """Write a directory as a whole, replacing the one of that name only at the end."""
    directory = directory.absolute()
    parent, fresh = directory.parent, directory.with_name(f".{directory.name}.new")
    draft = Draft(path=fresh, target=directory, world=world, what=what)

    def begin() -> None:
        parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()

    def finish() -> None:
        _flush(fresh)
        replace_directory(fresh, directory)

    try:
        draft.first(begin)
        yield draft
        draft.first(finish)
    except BaseException:
        if world.is_first:
            shutil.rmtree(fresh, ignore_errors=True)
        raise


def recover(directory: Path, *, world: World) -> None:
    """Give a directory its name back if a crash between two renames took it."""
    if world.is_first:
        recover_directory(directory.absolute())
    world.first_words("")  # nobody looks before the first has looked


def _flush(directory: Path) -> None:
    """Make the files durable before their directory gets its name."""
    for path in (*directory.rglob("*"), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _complaint(error: OSError | SafetensorError, directory: Path, what: str) -> str:
    """Return one message that names the directory and what is free."""
    number = error.errno if isinstance(error, OSError) else _os_error(error)
    exists = os.path.exists  # Path.exists raises where a parent may not be entered
    place = next(path for path in directory.absolute().parents if exists(path))
    free = shutil.disk_usage(place).free
    why = "the disk is full" if number in _FULL else str(error)
    previous = f"; the previous {what} is untouched" if exists(directory) else ""
    return (
        f"cannot write the {what} {directory}: {why} ({free:,} bytes free in {place}); "
        f"make room or choose another directory{previous}"
    )


def _os_error(error: SafetensorError) -> int | None:
    """Return the system's error number that safetensors keeps only in its message."""
    found = re.search(r"os error (\d+)", str(error))
    return int(found.group(1)) if found else None
