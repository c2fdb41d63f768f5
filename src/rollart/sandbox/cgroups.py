"""Control groups of sandboxes: limits on all processes of a sandbox together.

Version 1: each group is a child of this process's own group in each controller, so limits on this
process also bind its sandboxes. Version 2: a group of this process cannot have both processes and
limited children, so the groups are made below the nearest ancestor that passes on `memory` and
`pids`; where there is none because this process sits at the root of its container, the container's
processes are first moved into a child of the root. All sandboxes of a process share one parent
group with a small processor share: however many run, they take little time from the host's work.
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
from typing import Literal

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
UNIFIED_CONTROLLERS = ("memory", "pids")
"""What version 2 must offer; `cpu` is used if it is there."""
RUNNER_BYTES = 16 * 2**20
"""Memory for the runner and bubblewrap, added to the program's own limit."""
RUNNER_PROCESSES = 3
"""The runner's two threads and bubblewrap's process, which count towards the group's limit."""
REMOVAL_PAUSE_S = 0.005
HOST_GROUP = "rollart-host"
"""Version 2: the group into which the processes at the root of a container are moved."""

GroupVersion = Literal["any", "v1", "v2", "none"]
"""Which control groups to use: any that work, one version, or none."""

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
    """The control group of one sandbox, of version 1: a directory for each controller."""

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
        processes = (self._directories["pids"] / "cgroup.procs").read_text().split()
        return CpuUsage(cpu_s=self.cpu_s(), waits_s=read_usage(processes).waits_s)

    def memory_kills(self) -> int:
        """Return how many of its processes the kernel killed because memory ran out."""
        return _read_counts(self._directories["memory"] / "memory.oom_control")["oom_kill"]

    def most_memory(self) -> int:
        """Return the most bytes that its processes have held at once; 0 if nobody counts."""
        path = self._directories["memory"] / "memory.max_usage_in_bytes"
        return int(path.read_text()) if path.exists() else 0

    def watch_memory(self) -> int | None:
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


class UnifiedGroup(ControlGroup):
    """The control group of one sandbox, of version 2: one directory for all controllers.

    When its memory runs out the kernel kills the whole group, so nothing has to be watched.
    """

    def __init__(self, path: Path) -> None:
        super().__init__({"memory": path, "pids": path})
        self._path = path

    @property
    def entrances(self) -> tuple[str, ...]:
        """The file to which a process writes its id to enter the group."""
        return (str(self._path / "cgroup.procs"),)

    def limit(self, *, memory_bytes: int, processes: int) -> None:
        """Limit what its processes may use together."""
        (self._path / "memory.max").write_text(str(memory_bytes + RUNNER_BYTES))
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            # A kernel without swap has no such file.
            if (self._path / name).exists():
                (self._path / name).write_text(value)
        (self._path / "pids.max").write_text(str(processes + RUNNER_PROCESSES))

    def cpu_s(self) -> float:
        """Return the processor seconds its processes have used."""
        return _read_counts(self._path / "cpu.stat")["usage_usec"] / 1e6

    def memory_kills(self) -> int:
        """Return how many of its processes the kernel killed because memory ran out."""
        return _read_counts(self._path / "memory.events")["oom_kill"]

    def most_memory(self) -> int:
        """Return the most bytes that its processes have held at once; 0 if nobody counts."""
        path = self._path / "memory.peak"
        return int(path.read_text()) if path.exists() else 0

    def watch_memory(self) -> int | None:
        """Return None: the kernel ends the group by itself."""
        return None


class ControlGroups:
    """The groups of all sandboxes of one process, below one parent per controller."""

    version: GroupVersion = "v1"
    has_cpu = True
    """Whether the groups have a processor share."""

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


class UnifiedGroups(ControlGroups):
    """The groups of all sandboxes of one process, version 2, below one parent."""

    version: GroupVersion = "v2"

    def __init__(self, parent: Path, *, has_cpu: bool) -> None:
        super().__init__({"memory": parent})
        self.has_cpu = has_cpu
        self._parent = parent

    def make(self) -> ControlGroup:
        """Make a group for one more sandbox."""
        path = self._parent / str(next(self._count))
        path.mkdir(exist_ok=True)
        return UnifiedGroup(path)


def open_groups(cpu_shares: int, version: GroupVersion = "any") -> ControlGroups | None:
    """Create a parent group for the sandboxes of this process; return None if not possible."""
    groups: ControlGroups | None = None
    if version in ("any", "v1"):
        groups = _open_first_version(cpu_shares)
    if groups is None and version in ("any", "v2"):
        groups = _open_unified(cpu_shares)
    return groups


def _open_first_version(cpu_shares: int) -> ControlGroups | None:
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


def _open_unified(cpu_shares: int) -> ControlGroups | None:
    for place in unified_places():
        parent = place / f"rollart-{os.getpid()}-{next(_numbers)}"
        try:
            _pass_on(place)
            _remove_left(place)
            parent.mkdir(exist_ok=True)
            _pass_on(parent)
            has_cpu = (parent / "cpu.weight").exists()
            if has_cpu:
                # Version 1 gives a process 1,024 shares, version 2 a weight of 100.
                (parent / "cpu.weight").write_text(str(max(1, cpu_shares * 100 // 1024)))
            # A process can enter only if it may also leave the group it is in.
            _try_entrance(parent)
        except OSError:
            with contextlib.suppress(OSError):
                parent.rmdir()
            continue
        return UnifiedGroups(parent, has_cpu=has_cpu)
    return None


def unified_places(mount: Path = MOUNT, own: str | None = None) -> list[Path]:
    """Return where groups of version 2 may be made: this process's group, then its ancestors."""
    if own is None:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
        own = next((line[3:] for line in lines if line.startswith("0::")), None)
    root = mount if (mount / "cgroup.controllers").exists() else mount / "unified"
    if own is None or not (root / "cgroup.controllers").exists():
        return []
    path = root / own.lstrip("/")
    return [each for each in (path, *path.parents) if each.is_relative_to(root)]


def _pass_on(group: Path) -> None:
    """Let a group's children have its controllers; raise OSError if they cannot."""
    offered = (group / "cgroup.controllers").read_text().split()
    if not set(UNIFIED_CONTROLLERS) <= set(offered):
        raise OSError(errno.ENOTSUP, f"{group} has no controllers of memory and processes")
    wanted = [name for name in (*UNIFIED_CONTROLLERS, "cpu") if name in offered]
    switch = group / "cgroup.subtree_control"
    if set(wanted) <= set(switch.read_text().split()):
        return
    try:
        switch.write_text(" ".join(f"+{name}" for name in wanted))
    except OSError as error:
        if error.errno != errno.EBUSY or group.parent.joinpath("cgroup.controllers").exists():
            raise
        # The root of a container holds its processes: it can have groups once they moved aside.
        aside = group / HOST_GROUP
        aside.mkdir(exist_ok=True)
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (aside / "cgroup.procs").write_text(pid)
        switch.write_text(" ".join(f"+{name}" for name in wanted))


def _try_entrance(parent: Path) -> None:
    """Let a process enter a child group, as a sandbox will; raise OSError if it cannot."""
    child = parent / "entrance"
    child.mkdir()
    pid = os.posix_spawn("/bin/sleep", ["sleep", "5"], {})
    try:
        (child / "cgroup.procs").write_text(str(pid))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        child.rmdir()


def _read_counts(path: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines are a name and a number."""
    return {name: int(value) for name, value in map(str.split, path.read_text().splitlines())}


def read_usage(processes: list[str]) -> CpuUsage:
    """Return the processor time that living processes have used and waited for."""
    cpu_s = 0.0
    waits: dict[int, float] = {}
    for pid in processes:
        for path in Path("/proc", pid, "task").glob("*/schedstat"):
            with contextlib.suppress(OSError, IndexError):
                used, waited, _ = path.read_text().split()
                cpu_s += int(used) / 1e9
                waits[int(path.parent.name)] = int(waited) / 1e9
    return CpuUsage(cpu_s=cpu_s, waits_s=waits)


def find_children(pid: int) -> list[str]:
    """Return the processes that a process started; none if the kernel does not say."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


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
    for path in parent.glob("rollart-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            for child in [*path.glob("*/"), path]:
                with contextlib.suppress(OSError):
                    _kill_all(child)
                    child.rmdir()


def _kill_all(group: Path) -> None:
    kill = group / "cgroup.kill"
    if kill.exists():
        kill.write_text("1")
        return
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
