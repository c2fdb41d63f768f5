"""Directories for shared weights: one per run, removed when its run has died.

The name contains the process id of the run and its pid namespace. Other processes may remove a
directory only if that process is known to be dead, and a process of another namespace (a container
that shares /dev/shm) cannot know that.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

MEMORY_FILES = Path("/dev/shm")  # noqa: S108 - the kernel's place for shared memory
_NAME = re.compile(r"rollart-.*-(?P<namespace>\d+)-(?P<pid>\d+)-[^-]+")


def shared_directory(run_name: str) -> Path:
    """Create a directory for this process, in shared memory if that is writable."""
    plain_name = re.sub(r"[^A-Za-z0-9_]+", "_", run_name)[:64]
    prefix = f"rollart-{plain_name}-{_pid_namespace()}-{os.getpid()}-"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_base()))


def remove_directory(directory: Path) -> None:
    """Remove a run's directory; files that are already mapped stay readable."""
    shutil.rmtree(directory, ignore_errors=True)


def remove_leftovers() -> tuple[Path, ...]:
    """Remove the directories of this user's dead runs; return the removed paths."""
    removed: list[Path] = []
    for path in sorted(_base().glob("rollart-*")):
        match = _NAME.fullmatch(path.name)
        if match is None or int(match["namespace"]) != _pid_namespace():
            continue
        if _is_own_directory(path) and not _is_alive(int(match["pid"])):
            remove_directory(path)
            removed.append(path)
    return tuple(removed)


def _base() -> Path:
    if MEMORY_FILES.is_dir() and os.access(MEMORY_FILES, os.W_OK | os.X_OK):
        return MEMORY_FILES
    return Path(tempfile.gettempdir())


def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _is_own_directory(path: Path) -> bool:
    try:
        return not path.is_symlink() and path.is_dir() and path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
