"""A Ray cluster of two nodes, one at each end of the link.

The head is on the engines' side, and so is the table that owns the buckets: by the rule of
`cluster.ray_blobs` it is beside whoever opens the store first, and the engines do. What the trainer
pushes leaves its node's object store over the link and lies in that of the engines.
"""

import contextlib
import importlib
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from benchmarks.weight_links.link import Link
from rollart.errors import UserError

PORT = 51080
STORE_BYTES = 2 * 2**30
_START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """How the drivers of either side join: each the node of its own end."""

    address: str
    nodes: dict[str, str]
    """The address of each side's node."""


@contextlib.contextmanager
def joined(told: dict[str, Any] | None, side: str) -> Generator[None]:
    """Be connected to this end's node, if there is a cluster.

    By itself Ray would take the head: it knows the nodes of a machine by their processes.
    """
    if told is None:
        yield
        return
    ray: Any = importlib.import_module("ray")  # loaded only where it is measured
    ray.init(
        address=told["address"],
        namespace="rollart",
        _node_ip_address=told["nodes"][side],
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        ray.shutdown()


def start_ray(stack: contextlib.ExitStack, link: Link) -> tuple[Joining, dict[str, str]]:
    """Start both nodes; return how drivers join them, and the environment they need."""
    env = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token_hex(32),
        "OMP_NUM_THREADS": "1",
    }
    address = f"{link.engines_host}:{PORT}"
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="rl-ray-"))
    ends = {
        "engines": ("--head", f"--port={PORT}", "--include-dashboard=false", link.engines_host),
        "trainer": (f"--address={address}", link.trainer_host),
    }
    for side, (*options, host) in ends.items():
        log = Path(directory) / f"{side}.log"
        _start(stack, link, side, [*options, f"--node-ip-address={host}"], env=env, log=log)
    hosts = {"engines": link.engines_host, "trainer": link.trainer_host}
    return Joining(address=address, nodes=hosts), env


def _start(
    stack: contextlib.ExitStack,
    link: Link,
    side: str,
    options: list[str],
    *,
    env: dict[str, str],
    log: Path,
) -> None:
    ray = str(Path(sys.executable).with_name("ray"))
    common = ["--block", "--num-cpus=2", f"--object-store-memory={STORE_BYTES}"]
    command = ["env", *(f"{name}={value}" for name, value in env.items()), ray, "start"]
    with log.open("w") as output:
        process = subprocess.Popen(
            link.command(side, *command, *options, *common), stdout=output, stderr=output
        )
    stack.callback(_end, process)
    deadline_s = time.monotonic() + _START_S
    while "--block" not in log.read_text():  # it says so last, once the node runs
        if process.poll() is not None or time.monotonic() >= deadline_s:
            raise UserError(f"the Ray node of the {side} did not start: {log.read_text()[-500:]}")
        time.sleep(0.2)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
