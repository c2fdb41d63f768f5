"""What bubblewrap sandboxes are made of: filter, root, control groups, and how they end."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conditions import wait_until

from rollart.errors import ConfigError, SandboxError
from rollart.sandbox import open_sandbox, try_sandbox
from rollart.sandbox.bubblewrap import BubblewrapSandbox, SandboxLauncher
from rollart.sandbox.cgroups import open_groups, own_groups
from rollart.sandbox.options import SandboxOptions
from rollart.sandbox.process import SandboxProcess
from rollart.sandbox.root import build_root
from rollart.sandbox.seccomp import (
    ARCHITECTURES,
    DENIED,
    FCNTL,
    FORKS,
    UNBOUNDED,
    build_filter,
    build_single_filter,
)
from rollart.sandbox.subprocess import PlainSandbox
from rollart.types import Program
from studies.attacks.trap import contained_processes

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap"
)
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", list(ARCHITECTURES))
def test_denied_calls_have_the_numbers_of_the_kernels_headers(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    pairs = re.findall(r"#define __NR(?:3264)?_+(\w+)\s+(\d+)", header.read_text())
    numbers = {name: int(number) for name, number in pairs}
    column = list(ARCHITECTURES).index(machine)
    listed = {**DENIED, **UNBOUNDED, **FORKS, "fcntl": FCNTL}
    denied = {name: each[column] for name, each in listed.items()}
    assert denied == {name: numbers.get(name) for name in listed}


def test_a_filter_is_whole_steps_and_none_is_made_for_an_unknown_machine() -> None:
    for machine in ARCHITECTURES:
        made = build_filter(machine)
        assert made is not None
        assert len(made) % 8 == 0
    assert build_filter("vax") is None
    assert build_single_filter("vax") is None


@needs_bubblewrap
def test_a_sandbox_that_cannot_bound_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(
        ConfigError, match=r"sandbox\.allow_unbounded_memory = False: memory cannot"
    ):
        SandboxLauncher(SandboxOptions(), groups="none")
    allowed = SandboxLauncher(SandboxOptions(allow_unbounded_memory=True), groups="none")
    assert allowed.describe()["memory"] == "rlimit, each process by itself"


@needs_bubblewrap
def test_a_sandbox_is_tried_by_running_a_program(tmp_path: Path) -> None:
    held_by = asyncio.run(try_sandbox(SandboxOptions()))
    assert {"memory", "cpu", "processes", "user"} <= held_by.keys()
    silent = tmp_path / "bin" / "python3"
    silent.parent.mkdir()
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    with pytest.raises(SandboxError):
        asyncio.run(try_sandbox(SandboxOptions(python=str(silent))))


class NeverWarm(SandboxLauncher):
    """A launcher whose warm sandboxes do not start."""

    async def start(self, *, files_bytes: int, preload: tuple[str, ...] = ()) -> SandboxProcess:
        if preload:
            raise SandboxError("a sandbox did not start within 30 s")
        return await super().start(files_bytes=files_bytes)


@needs_bubblewrap
def test_a_warm_start_that_failed_is_made_up_for_by_a_cold_one() -> None:
    async def run_one() -> bytes:
        options = SandboxOptions(warm=2)
        sandbox = BubblewrapSandbox(options, NeverWarm(options))
        await sandbox.warm_up()
        try:
            return (await sandbox.run(Program(argv=("echo", "here")))).stdout
        finally:
            await sandbox.close()

    assert asyncio.run(run_one()) == b"here\n"


def test_plain_processes_are_refused_unless_the_options_allow_them() -> None:
    with pytest.raises(ConfigError, match="allow_plain = true"):
        SandboxOptions(kind="plain")
    with pytest.raises(ConfigError, match="allow_plain"):
        PlainSandbox(SandboxOptions())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "chroot"),
        ("concurrency", 0),
        ("warm", -1),
        ("cpu_shares", 1),
        ("preload", ("os; import x",)),
        ("root", "/no/such/place"),
        ("python", "python3"),
    ],
)
def test_an_option_that_cannot_be_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"sandbox\.{field}"):
        SandboxOptions(**{field: value})  # pyright: ignore[reportArgumentType]


def test_a_missing_bubblewrap_is_said_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="apt-get install bubblewrap"):
        open_sandbox(SandboxOptions())


@needs_bubblewrap
def test_a_sandbox_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        SandboxLauncher(SandboxOptions(python=str(tmp_path / "python3")))


@needs_bubblewrap
def test_a_prepared_root_is_built_once_and_its_packages_are_seen(tmp_path: Path) -> None:
    wheel = tmp_path / "greeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "WORD = 'hello'\n")
        about = "greeting-1.0.dist-info"
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    root = build_root((str(wheel),), store=tmp_path / "store")
    made = root.stat()
    again = build_root((str(wheel),), store=tmp_path / "store")
    assert (again, again.stat()) == (root, made)

    async def use() -> list[tuple[bytes, bytes]]:
        store = str(tmp_path / "store")
        sandbox = open_sandbox(SandboxOptions(packages=(str(wheel),), cache=store, warm=1))
        source = "import greeting; print(greeting.WORD)"
        spoil = "import greeting; open(greeting.__file__, 'w')"
        commands = (("python3", "-c", source), ("sh", "-c", f'python3 -c "{source}"'))
        try:
            results = [await sandbox.run(Program(argv=argv)) for argv in commands]
            spoiled = await sandbox.run(Program(argv=("python3", "-c", spoil)))
        finally:
            await sandbox.close()
        return [(r.stdout, r.stderr) for r in results] + [(spoiled.stdout, spoiled.stderr[-60:])]

    first, second, spoiled = asyncio.run(use())
    assert list((tmp_path / "store").iterdir()) == [root]
    assert first == second == (b"hello\n", b"")
    assert b"Read-only file system" in spoiled[1]


@needs_bubblewrap
def test_packages_that_cannot_be_had_are_named(tmp_path: Path) -> None:
    missing = (str(tmp_path / "missing-1.0-py3-none-any.whl"),)
    with pytest.raises(ConfigError, match=r"^sandbox\.packages = .*: pip could not install"):
        open_sandbox(SandboxOptions(packages=missing, cache=str(tmp_path / "store")))
    assert list((tmp_path / "store").iterdir()) == []
    with pytest.raises(ConfigError, match=r"^sandbox\.packages = .*: need kind = "):
        SandboxOptions(packages=("a",), root=str(tmp_path))


@needs_bubblewrap
def test_packages_of_the_host_are_not_seen() -> None:
    async def look() -> bytes:
        sandbox = BubblewrapSandbox(SandboxOptions(warm=0))
        try:
            argv = ("sh", "-c", "python3 -c 'import pip' 2>&1 | tail -1")
            return (await sandbox.run(Program(argv=argv))).stdout
        finally:
            await sandbox.close()

    assert asyncio.run(look()) == b"ModuleNotFoundError: No module named 'pip'\n"


def test_groups_of_an_owner_that_is_gone_are_removed() -> None:
    own = own_groups()
    groups = open_groups(64)
    if own is None or groups is None:
        pytest.skip("control groups of version 1 are not to be had")
    left = own["pids"] / "rollart-99999999-0"
    (left / "0").mkdir(parents=True)
    with subprocess.Popen(["sleep", "1000"]) as orphan:
        (left / "0" / "cgroup.procs").write_text(str(orphan.pid))
        other = open_groups(64)
        assert other is not None
        assert orphan.wait() == -signal.SIGKILL
    another = open_groups(64)
    assert another is not None
    assert not left.exists()
    for opened in (groups, other, another):
        opened.close()
    assert not list(own["pids"].glob(f"rollart-{os.getpid()}-*"))


OWNER = """
import asyncio
from rollart.sandbox import open_sandbox, try_sandbox
from rollart.sandbox.options import SandboxOptions
from rollart.types import Program

async def main():
    sandbox = open_sandbox(SandboxOptions(warm=1))
    await sandbox.warm_up()
    running = asyncio.create_task(sandbox.run(Program(argv=("python3", "-c", "while True: pass"))))
    await asyncio.sleep(0.3)
    print("running", flush=True)
    await running

asyncio.run(main())
"""


@needs_bubblewrap
def test_sandboxes_die_with_the_process_that_opened_them() -> None:
    before = contained_processes()
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"running\n"
        assert contained_processes() - before
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not contained_processes() - before)
    groups = open_groups(64)
    if groups is not None:
        groups.close()
