"""Import once what processes of a run import, so that its compiled files are there for all.

The packages are installed without them: most modules are never imported. Where the environment
forbids Python to write them, every start would compile everything anew.
"""

import contextlib
import importlib
import sys

MODULES = (
    "rollart.cli.entry",
    "rollart.pipelines.agentic",
    "rollart.training.trainer",
    "rollart.rewards.invoke.http",
    "rollart.cluster.ray_host",
    "rollart_robot.trainer",
    "rollart_robot.metaworld_env",
    "peft",
    "trl",
)

sys.dont_write_bytecode = False
for module in MODULES:
    with contextlib.suppress(Exception):  # of an extra that was not asked for
        importlib.import_module(module)
