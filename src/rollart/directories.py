"""Directories that are replaced whole.

A draft is written beside its target and gets its name by two renames; the directory of that name
before it goes only afterwards. What goes wrong between the renames, a crash too, costs the new one,
never the old.
"""

import shutil
from pathlib import Path


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
