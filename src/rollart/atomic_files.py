"""Files and directories that are written whole or not at all.

What is new is written beside its target under another name, and renamed when it is complete. A
reader, a second writer or a later run therefore meets the old content or the new, never a part of
either. A directory takes two renames, so for an instant there is none; `recover_directory` brings
the old one back if the program dies in that instant.

    write_file(path, data)             a file
    with written_whole(path) as draft  a directory, filled by the caller
    replace_directory(draft, path)     a directory that is filled already
"""

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rollart.errors import StorageError
from rollart.types import Json


def replace_directory(draft: Path, target: Path) -> None:
    """Give a draft its name, in place of the directory that has it."""
    old = _aside(target)
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    try:
        draft.rename(target)
    except OSError:
        recover_directory(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def recover_directory(target: Path) -> None:
    """Give a directory its name back if its replacement was cut short."""
    old = _aside(target)
    if old.exists() and not target.exists():
        old.rename(target)


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
        directory.parent.mkdir(parents=True, exist_ok=True)
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


def write_file(path: Path, data: bytes | memoryview, *, draft: Path | None = None) -> None:
    """Give a file this content; OSError, and the old content stays, if that cannot be.

    `draft` is the name it is written under first, in the same directory.
    """
    beside = draft or path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_through(path: Path, data: bytes) -> None:
    """Write a file of a draft so that it is on the disk before the draft gets its name."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_summary(path: Path, values: Mapping[str, Json]) -> None:
    """Write the figures a run ended with as one small JSON file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, (json.dumps(dict(values), indent=2) + "\n").encode())
    except OSError as error:
        raise StorageError(f"{path}: the summary cannot be written: {error}") from error
