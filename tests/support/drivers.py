"""What test modules run in drivers of their own: Ray ends drivers it is unhappy with."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

from rollart.cluster.ray_session import connected

ALONE = """
import importlib, sys
module, _, name = sys.argv[1].partition(":")
getattr(importlib.import_module(module), name)(*sys.argv[2:])
"""


def alone_in_a_driver(what, *args):
    """Run `module:function` with strings in a process of its own; return what it said."""
    ended = subprocess.run(
        [sys.executable, "-c", ALONE, what, *args],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stderr


def in_a_driver(what, address, tmp_path):
    """Run `module:function` with a directory, connected to a cluster."""
    alone_in_a_driver("drivers:run_connected", address, what, str(tmp_path))


def run_connected(address, what, directory):
    """Be connected to a cluster while a function runs."""
    with connected(address):
        module, _, name = what.partition(":")
        getattr(importlib.import_module(module), name)(Path(directory))
