"""Files and directories that are replaced as a whole: the one atomic write.

A draft is written beside its target and gets its name when it is complete, so that a reader, a
second writer or a later run never meets half of it. A directory takes two renames: a crash between
them loses the new directory, never the old one, which `recover_directory` puts back.
"""

import json
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
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


def write_summary(path: Path, values: Mapping[str, Json]) -> None:
    """Write the summary; readers see the old one or the new one, never half of it."""
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(dict(values), indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: the summary cannot be written: {error}") from error
