import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conditions import wait_until

from rollart.errors import StorageError
from rollart.observe import run_directory as holding
from rollart.observe.run_directory import check_free, claim_directory, find_holder, lock_directory

HOLD = """
import sys
from pathlib import Path
from rollart.observe.run_directory import lock_directory
with lock_directory(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other():
    """Return a function that has another process hold a directory."""
    started: list[subprocess.Popen[str]] = []

    def hold(directory: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(directory)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def test_a_directory_in_use_is_refused_by_the_name_of_the_process_until_that_ends(tmp_path, other):
    directory = tmp_path / "run"
    process = other(directory)
    said = (
        f"{directory} is in use by process {process.pid}: choose another run.name or "
        "run.directory, or wait until it ends"
    )
    with pytest.raises(StorageError) as caught, lock_directory(directory):
        pass
    assert str(caught.value) == said
    with pytest.raises(StorageError) as caught:
        check_free(directory)
    assert str(caught.value) == said
    process.kill()
    process.communicate()
    assert (directory / ".lock").exists()
    check_free(directory)
    with lock_directory(directory):
        assert (directory / ".lock").read_text() == str(os.getpid())


def test_a_hold_leaves_no_file_and_no_directory_that_nothing_came_into(tmp_path):
    directory = tmp_path / "runs" / "run"
    with lock_directory(directory):
        assert find_holder(directory) == f"process {os.getpid()}"
    assert list(tmp_path.iterdir()) == []
    with lock_directory(directory):
        (directory / "config.toml").touch()
    assert [path.name for path in directory.iterdir()] == ["config.toml"]


def test_a_run_that_moves_another_aside_holds_the_new_directory_and_not_the_old(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "config.toml").touch()
    with lock_directory(directory) as hold:
        moved = claim_directory(directory)
        assert moved is not None
        hold.relock(moved)
        assert find_holder(directory) == f"process {os.getpid()}"
        assert [path.name for path in moved.iterdir()] == ["config.toml"]
        check_free(moved)


def test_a_hold_of_a_directory_that_was_removed_spares_the_one_made_in_its_place(tmp_path, other):
    directory = tmp_path / "run"
    with lock_directory(directory):
        (directory / ".lock").unlink()
        directory.rmdir()
        process = other(directory)
    assert find_holder(directory) == f"process {process.pid}"


def test_a_file_system_without_locks_costs_no_run(tmp_path, monkeypatch):
    def refuse(_file: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(holding.fcntl, "flock", refuse)
    with lock_directory(tmp_path / "run"):
        assert list((tmp_path / "run").iterdir()) == []
        check_free(tmp_path / "run")


def test_a_place_that_is_no_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError, match=r"cannot be used as the run's directory \(run\.dir"),
        lock_directory(tmp_path / "file" / "run"),
    ):
        pass


def test_a_child_that_outlives_the_run_holds_nothing(tmp_path):
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from rollart.observe.run_directory import DirectoryLock\n"
        "hold = DirectoryLock(Path(sys.argv[1]))\n"
        "child = os.fork()\n"
        "if child:\n"
        "    print(child, flush=True)\n"
        "    os._exit(0)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        assert run.wait(timeout=120) == 0
        try:
            wait_until(lambda: find_holder(tmp_path) is None)  # the child has to run first
            check_free(tmp_path)
        finally:
            os.kill(child, signal.SIGKILL)
