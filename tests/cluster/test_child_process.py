"""Child processes: they end with their parent, are killed whole, and say how they ended."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from checkout import SUPPORT
from conditions import wait_until

from rollart.cluster.child_process import ChildProcess, OutputTail


@pytest.fixture
def path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), *sys.path]))


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_end(pid):
    wait_until(lambda: not is_running(pid))


def start(*arguments, **options):
    return ChildProcess("child_program", arguments, fds=[], **options)


def test_a_child_that_exits_tells_its_code_and_what_it_printed(path):
    child = start("exit", "7")
    with child.output as output:
        assert output.read() == b"to stdout\nto stderr\n"
    assert child.wait() == 7
    assert (child.how_it_ended, child.is_running) == ("exited with code 7", False)


def test_what_a_child_started_is_killed_with_it(path):
    child = start("family")
    with child.output as output:
        grandchild = int(output.readline())
        assert child.wait(timeout_s=0.01) is None
        assert (child.is_running, child.how_it_ended) == (True, "is still running")
        child.kill()
    assert child.wait() == -signal.SIGKILL
    assert child.how_it_ended == "was killed by SIGKILL"
    await_end(grandchild)
    child.kill()  # safe at any time


def test_a_child_takes_descriptors_and_environment_but_passes_no_descriptor_on(path):
    read_fd, write_fd = os.pipe()
    child = ChildProcess(
        "child_program", ["descriptors", str(write_fd)], fds=[write_fd], env={"GREETING": "hello"}
    )
    os.close(write_fd)
    with child.output as output:
        assert output.read().split() == [b"hello", b"inherited:", b"False"]
    with os.fdopen(read_fd, "rb") as pipe:
        assert pipe.read() == b"written"
    assert child.wait() == 0


def test_a_child_ignores_ctrl_c_where_it_says_so(path):
    child = start("family")
    with child.output as output:
        output.readline()
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(timeout_s=0.1) is None
        child.kill()
    child.wait()


def test_a_busy_child_ends_with_its_parent(path, tmp_path):
    program = textwrap.dedent("""
        import os, signal
        from rollart.cluster.child_process import ChildProcess
        child = ChildProcess("child_program", ["family"], fds=[])
        child.output.readline()
        print(child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    await_end(int(ended.stdout))


def test_a_tail_keeps_the_last_bytes():
    tail = OutputTail(limit_bytes=10)
    assert tail.text == ""
    tail.add(b"first line\n")
    tail.add(b"second\n")
    assert tail.text == "ne\nsecond"
    tail.add(b"x" * 100 + b" \n")
    assert tail.text == "x" * 8
