import os
import subprocess
import sys

from rollart.weights.shared_memory import remove_directory, remove_leftovers, shared_directory

MAKER = "from rollart.weights.shared_memory import *; print(shared_directory('a run/../x'))"


def test_a_run_has_its_own_private_directory():
    first, second = shared_directory("run"), shared_directory("run")
    assert first != second
    assert first.stat().st_mode & 0o777 == 0o700
    assert f"-{os.getpid()}-" in first.name
    remove_directory(first)
    remove_directory(second)
    assert not first.exists()


def test_directories_of_dead_runs_are_removed_and_those_of_living_ones_kept():
    own = shared_directory("alive")
    made = subprocess.run([sys.executable, "-c", MAKER], capture_output=True, text=True, check=True)
    dead = own.parent / made.stdout.strip().rpartition("/")[2]
    assert dead.name.startswith("rollart-a_run_x-")
    assert dead.is_dir()
    removed = remove_leftovers()
    assert dead in removed
    assert own not in removed
    assert (dead.exists(), own.exists()) == (False, True)
    remove_directory(own)


def test_a_directory_of_another_pid_namespace_is_left_alone():
    own = shared_directory("other")
    run, name, namespace, _, nonce = own.name.split("-")
    foreign = own.rename(own.parent / f"{run}-{name}-{int(namespace) + 1}-999999999-{nonce}")
    assert foreign not in remove_leftovers()
    remove_directory(foreign)
