"""A process that is held by a call into a cluster that is gone ends all the same."""

import socket
import subprocess
import sys
import time

from rollart.cluster.ray_session import guarded

HELD = """
import sys, time
from rollart.cluster.ray_session import guarded
print("ready", flush=True)
with guarded(sys.argv[1], lambda: "the cluster is gone", patience_s=0.5):
    time.sleep(600)
"""


def test_a_held_process_ends_with_its_last_words_once_the_head_is_gone():
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        held = subprocess.Popen(
            [sys.executable, "-c", HELD, address], stdout=-1, stderr=-1, text=True
        )
        assert held.stdout is not None
        assert held.stdout.readline() == "ready\n"
        time.sleep(1.5)
        assert held.poll() is None  # the head is there
    _, said = held.communicate(timeout=120)
    assert (held.returncode, said) == (2, "error: the cluster is gone\n")


def test_a_block_that_ends_is_left_alone():
    with guarded("127.0.0.1:1", lambda: "never said", patience_s=1.0):
        pass
    time.sleep(1.5)  # this process would have ended
