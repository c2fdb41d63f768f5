"""Control groups of sandboxes: limits that hold for all processes of one together.

A group is a child of this process's own group in each controller (version 1 hierarchies), so
what limits this process goes on limiting its sandboxes. One parent holds all sandboxes of a
process: its small share of the processor bounds what they take from the host's own work,
however many there are. Version 2 hierarchies are not used; there, rlimits stand in.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
RUNNER_BYTES = 16 * 2**20
"""What the runner and bubblewrap may take beside the program's own memory."""
RUNNER_PROCESSES = 3
"""The runner's two threads and bubblewrap's own process, which are in the group too."""
REMOVAL_PAUSE_S = 0.005

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUsage:
    """What the processes of a group have had of the processors so far."""

    cpu_s: float
    waits_s: Mapping[int, float]
    """How long each living thread was ready to run without running; empty where not counted."""

    def waited_since(self, before: "CpuUsage") -> float | None:
        """Return the longest that one thread waited since; None where nobody counts."""
        waits = (wait - before.waits_s.get(task, 0.0) for task, wait in self.waits_s.items())
        return max(waits, default=None)


class ControlGroup:
    """The control group of one sandbox."""

    def __init__(self, directories: dict[str, Path]) -> None:
        self._directories = directories

    @property
    def entrances(self) -> tuple[str, ...]:
        """Files a process writes its id to, to enter."""
        return tuple(str(path / "cgroup.procs") for path in self._directories.values())

    def limit(self, *, memory_bytes: int, processes: int) -> None:
        """Set what its processes may use together."""
        memory = self._directories["memory"]
        total = str(memory_bytes + RUNNER_BYTES)
        swap = memory / "memory.memsw.limit_in_bytes"
        if swap.exists():
            swap.write_text("-1")
        (memory / "memory.limit_in_bytes").write_text(total)
        if swap.exists():
            swap.write_text(total)
        (self._directories["pids"] / "pids.max").write_text(str(processes + RUNNER_PROCESSES))

    def cpu_s(self) -> float:
        """Return the processor seconds its processes used so far."""
        return int((self._directories["cpuacct"] / "cpuacct.usage").read_text()) / 1e9

    def usage(self) -> CpuUsage:
        """Return what its processes had so far, and how long they waited for it."""
        waits: dict[int, float] = {}
        for pid in (self._directories["cpuacct"] / "cgroup.procs").read_text().split():
            for path in Path("/proc", pid, "task").glob("*/schedstat"):
                with contextlib.suppress(OSError, IndexError):
                    waits[int(path.parent.name)] = int(path.read_text().split()[1]) / 1e9
        return CpuUsage(cpu_s=self.cpu_s(), waits_s=waits)

    def memory_kills(self) -> int:
        """Return how many of its processes the kernel killed for want of memory."""
        lines = (self._directories["memory"] / "memory.oom_control").read_text().splitlines()
        counts = dict(line.split() for line in lines)
        return int(counts["oom_kill"])

    def watch_memory(self) -> int:
        """Return an event descriptor that is readable once memory ran out."""
        memory = self._directories["memory"]
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        control = os.open(memory / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
        try:
            (memory / "cgroup.event_control").write_text(f"{event} {control}")
        finally:
            os.close(control)
        return event

    async def remove(self) -> None:
        """Kill what is still in the group, wait until it is gone and remove the group.

        Nothing is, but where a sandbox was given up half started: bubblewrap's child then dies a
        moment after bubblewrap.
        """
        for path in self._directories.values():
            while not _is_removed(path):
                _kill_all(path)
                await asyncio.sleep(REMOVAL_PAUSE_S)


class ControlGroups:
    """All sandboxes' groups of one owner, below one parent per controller."""

    def __init__(self, parents: dict[str, Path]) -> None:
        self._parents = parents
        self._count = itertools.count()

    def make(self) -> ControlGroup:
        """Make a group for one more sandbox."""
        name = str(next(self._count))
        directories = {key: parent / name for key, parent in self._parents.items()}
        for path in directories.values():
            path.mkdir(exist_ok=True)
        return ControlGroup(directories)

    def close(self) -> None:
        """Remove the parents; their groups are gone."""
        for path in self._parents.values():
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()


def open_groups(cpu_shares: int) -> ControlGroups | None:
    """Open groups below this process's own, or None where it may not or cannot."""
    own = own_groups()
    if own is None:
        return None
    name = f"rollart-{os.getpid()}-{next(_numbers)}"
    parents = {key: path / name for key, path in own.items()}
    try:
        for key, path in own.items():
            _remove_left(path)
            parents[key].mkdir(exist_ok=True)
        (parents["cpu"] / "cpu.shares").write_text(str(cpu_shares))
    except OSError:
        ControlGroups(parents).close()
        return None
    return ControlGroups(parents)


def own_groups() -> dict[str, Path] | None:
    """Return this process's group in each controller, None unless all are version 1."""
    own: dict[str, Path] = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            own[name] = MOUNT / name / path.lstrip("/")
    if not all(name in own and own[name].is_dir() for name in CONTROLLERS):
        return None
    return {name: own[name] for name in CONTROLLERS}


def _is_removed(path: Path) -> bool:
    """Remove an empty group; say False if it is not empty."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _remove_left(parent: Path) -> None:
    """Remove groups whose owner was killed before it could.

    Its sandboxes died with it, but for one that was just starting: bubblewrap's child may then
    wait for ever for its dead parent. It runs no program yet; it is killed here.
    """
    for path in parent.glob("rollart-*"):
        owner = path.name.split("-")[1]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            for child in [*path.glob("*/"), path]:
                with contextlib.suppress(OSError):
                    _kill_all(child)
                    child.rmdir()


def _kill_all(group: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
