"""What a group says of its processes."""

import asyncio
from pathlib import Path

import pytest

from rollart.sandbox.cgroups import (
    RUNNER_BYTES,
    RUNNER_PROCESSES,
    CpuUsage,
    UnifiedGroup,
    open_groups,
    unified_places,
)


def test_the_longest_wait_since_counts_a_new_thread_from_its_start() -> None:
    before = CpuUsage(cpu_s=1.0, waits_s={1: 5.0, 2: 0.1})
    after = CpuUsage(cpu_s=1.5, waits_s={1: 5.5, 3: 2.0})
    assert after.waited_since(before) == 2.0


def test_where_nobody_counts_no_wait_is_known() -> None:
    nothing = CpuUsage(cpu_s=1.0, waits_s={})
    assert nothing.waited_since(nothing) is None


def make_unified(path: Path) -> UnifiedGroup:
    """A directory with the files that the kernel has in a group of version 2."""
    files = {
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.oom.group": "0",
        "memory.peak": "4096",
        "memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 1\n",
        "pids.max": "max",
        "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n",
        "cgroup.procs": "",
    }
    for name, text in files.items():
        (path / name).write_text(text)
    return UnifiedGroup(path)


def test_a_group_of_version_2_limits_and_reads_by_its_own_files(tmp_path: Path) -> None:
    group = make_unified(tmp_path)
    group.limit(memory_bytes=2**27, processes=5)
    written = {name: (tmp_path / name).read_text() for name in ("memory.max", "pids.max")}
    assert written == {
        "memory.max": str(2**27 + RUNNER_BYTES),
        "pids.max": str(5 + RUNNER_PROCESSES),
    }
    assert (tmp_path / "memory.oom.group").read_text() == "1"
    assert (tmp_path / "memory.swap.max").read_text() == "0"
    assert (group.cpu_s(), group.memory_kills(), group.most_memory()) == (1.5, 2, 4096)
    assert (group.usage().cpu_s, group.watch_memory()) == (1.5, None)
    assert group.entrances == (str(tmp_path / "cgroup.procs"),)


def test_groups_of_version_2_are_looked_for_from_the_own_one_up(tmp_path: Path) -> None:
    assert unified_places(tmp_path, "/user.slice/session-1.scope") == []
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("hugetlb")
    assert unified_places(tmp_path, "/") == [tmp_path / "unified"]
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    assert unified_places(tmp_path, "/user.slice/session-1.scope") == [
        tmp_path / "user.slice" / "session-1.scope",
        tmp_path / "user.slice",
        tmp_path,
    ]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_groups_of_a_version_are_made_and_removed_where_the_kernel_has_them(version) -> None:
    groups = open_groups(64, version)
    if groups is None:
        pytest.skip(f"this machine has no writable control groups of version {version[1]}")
    group = groups.make()
    assert groups.version == version
    group.limit(memory_bytes=2**26, processes=4)
    asyncio.run(group.remove())
    groups.close()
    assert open_groups(64, "none") is None
