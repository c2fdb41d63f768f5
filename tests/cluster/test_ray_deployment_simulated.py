"""Simulated machines leave nothing behind."""

import os

from conditions import wait_until

from benchmarks.ray_runs.families import children, family


def test_a_machine_that_is_removed_leaves_no_process(cluster):
    before = children(os.getpid())
    cluster.add("extra", cpus=0)
    started = [family(pid) for pid in children(os.getpid()) if pid not in before]
    alive = {pid: birth for each in started for pid, birth in each.items()}
    assert len(alive) > 2
    cluster.remove("extra")
    wait_until(lambda: not any(family(pid)[pid] == birth for pid, birth in alive.items()))
