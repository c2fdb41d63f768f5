"""Control groups of sandboxes: limits on all processes of a sandbox together.

Each group is a child of this process's own group in each controller (cgroup version 1), so limits
on this process also bind its sandboxes. All sandboxes of a process share one parent group with a
small processor share: however many run, they take little time from the host's own work. Version 2
is not supported; there, rlimits are used instead.
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
"""Memory for the runner and bubblewrap, added to the program's own limit."""
RUNNER_PROCESSES = 3
"""The runner's two threads and bubblewrap's process, which count towards the group's limit."""
REMOVAL_PAUSE_S = 0.005

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUsage:
    """Processor time the processes of a group have used so far.

    Example:
        >>> usage = CpuUsage(cpu_s=0.42, waits_s={4711: 0.05})

    """

    cpu_s: float
    waits_s: Mapping[int, float]
    """Seconds each living thread was ready but not running; empty if the kernel keeps no count."""

    def waited_since(self, before: "CpuUsage") -> float | None:
        """Return the longest wait of one thread since `before`; None if it is not counted."""
        waits = (wait - before.waits_s.get(task, 0.0) for task, wait in self.waits_s.items())
        return max(waits, default=None)


class ControlGroup:
    """The control group of one sandbox."""

    def __init__(self, directories: dict[str, Path]) -> None:
        self._directories = directories

    @property
    def entrances(self) -> tuple[str, ...]:
        """Files to which a process writes its id to enter the group."""
        return tuple(str(path / "cgroup.procs") for path in self._directories.values())

    def limit(self, *, memory_bytes: int, processes: int) -> None:
        """Limit what its processes may use together."""
        memory = self._directories["memory"]
        total = str(memory_bytes + RUNNER_BYTES)
        swap = memory / "memory.memsw.limit_in_bytes"
        # The kernel refuses a memory limit above the memory-and-swap limit: lift that first.
        if swap.exists():
            swap.write_text("-1")
        (memory / "memory.limit_in_bytes").write_text(total)
        if swap.exists():
            swap.write_text(total)
        (self._directories["pids"] / "pids.max").write_text(str(processes + RUNNER_PROCESSES))

    def cpu_s(self) -> float:
        """Return the processor seconds its processes have used."""
        return int((self._directories["cpuacct"] / "cpuacct.usage").read_text()) / 1e9

    def usage(self) -> CpuUsage:
        """Return the processor time its processes have used and waited for."""
        waits: dict[int, float] = {}
        for pid in (self._directories["cpuacct"] / "cgroup.procs").read_text().split():
            for path in Path("/proc", pid, "task").glob("*/schedstat"):
                with contextlib.suppress(OSError, IndexError):
                    waits[int(path.parent.name)] = int(path.read_text().split()[1]) / 1e9
        return CpuUsage(cpu_s=self.cpu_s(), waits_s=waits)

    def memory_kills(self) -> int:
        """Return how many of its processes the kernel killed because memory ran out."""
        lines = (self._directories["memory"] / "memory.oom_control").read_text().splitlines()
        counts = dict(line.split() for line in lines)
        return int(counts["oom_kill"])

    def watch_memory(self) -> int:
        """Return an event descriptor that becomes readable when memory runs out."""
        memory = self._directories["memory"]
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        control = os.open(memory / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
        try:
            (memory / "cgroup.event_control").write_text(f"{event} {control}")
        finally:
            os.close(control)
        return event

    async def remove(self) -> None:
        """Kill processes still in the group, wait for them and remove the group.

        Usually none is left. After a start that was abandoned half-way, bubblewrap's child dies a
        moment after bubblewrap.
        """
        for path in self._directories.values():
            while not _is_removed(path):
                _kill_all(path)
                await asyncio.sleep(REMOVAL_PAUSE_S)


class ControlGroups:
    """The groups of all sandboxes of one process, below one parent per controller."""

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
        """Remove the parent groups; their children must have been removed."""
        for path in self._parents.values():
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()


def open_groups(cpu_shares: int) -> ControlGroups | None:
    """Create a parent group below this process's own; return None if that is not possible."""
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
    """Return this process's group in each controller; None unless all are version 1."""
    own: dict[str, Path] = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            own[name] = MOUNT / name / path.lstrip("/")
    if not all(name in own and own[name].is_dir() for name in CONTROLLERS):
        return None
    return {name: own[name] for name in CONTROLLERS}


def _is_removed(path: Path) -> bool:
    """Remove a group; return False if it still holds processes."""
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
    """Remove groups whose owner was killed before it could remove them.

    Its sandboxes died with it, except one that was just starting: bubblewrap's child may then wait
    for ever for its dead parent. It runs no program yet, and is killed here.
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
