"""Processes and all they started, by the kernel's own list; ended by id, never by name."""

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the processes that a process started itself."""
    return _by_parent().get(pid, [])


def family(pid: int) -> dict[int, str]:
    """Return a process and all it started, each with when it began."""
    by_parent = _by_parent()
    found, todo = dict[int, str](), [pid]
    while todo:
        each = todo.pop()
        found[each] = _birth(each)
        todo += by_parent.get(each, [])
    return found


def kill(processes: Mapping[int, str]) -> None:
    """Kill processes; an id that another process has by now is left alone."""
    for pid, birth in processes.items():
        if birth and _birth(pid) == birth:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _by_parent() -> dict[int, list[int]]:
    started: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        stat = _stat(int(entry.name)) if entry.name.isdigit() else []
        if stat:
            started.setdefault(int(stat[1]), []).append(int(entry.name))
    return started


def _birth(pid: int) -> str:
    """Return when a process began, by the kernel's clock; empty if it has ended."""
    stat = _stat(pid)
    return stat[19] if stat and stat[0] != "Z" else ""


def _stat(pid: int) -> list[str]:
    """Return what the kernel tells of a process after its name: state, parent and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
