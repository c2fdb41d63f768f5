"""The process of an actor ends quietly when the other side of its pipes does."""

import os
import subprocess
import sys

import pytest

from rollart.plugins import LOCAL_WORKER
from rollart.serialization.values import encode

FRAME = b"".join(encode(("host_actors:Echo", {}, sys.path)))


@pytest.mark.parametrize("sent", [b"", FRAME[:5], FRAME[:-1], FRAME])
def test_a_parent_that_hangs_up_is_no_error_of_the_process(sent):
    theirs, ours = os.pipe()
    answers, answering = os.pipe()
    arguments = [str(theirs), str(answering), str(os.getpid())]
    process = subprocess.Popen(
        [sys.executable, "-m", LOCAL_WORKER, *arguments],
        pass_fds=(theirs, answering),
        stderr=subprocess.PIPE,
    )
    try:
        os.close(theirs)
        os.close(answering)
        os.write(ours, sent)
        os.close(ours)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(answers)
    assert (process.returncode, said) == (0, b"")
