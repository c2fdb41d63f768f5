"""Functions of test modules run in drivers of their own: Ray ends drivers it is unhappy with."""

import os
import subprocess
import sys

PROGRAM = """
import importlib, pathlib, sys
from rollart.on_ray.session import connected
module, _, name = sys.argv[2].partition(":")
with connected(sys.argv[1]):
    getattr(importlib.import_module(module), name)(pathlib.Path(sys.argv[3]))
"""


def in_a_driver(what, address, tmp_path):
    """Run `module:function` with a directory, connected to a cluster."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, address, what, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
