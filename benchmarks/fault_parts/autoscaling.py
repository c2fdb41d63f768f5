"""A Ray cluster with its autoscaler, simulated: its nodes are raylets on this machine.

Ray's own autoscaler decides; its provider of fake nodes starts and stops them. All processes have
the cluster's directory in their command line, and are ended by their id when the block ends.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

# Before Ray is loaded, which reads them once; the cluster inherits them.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))

_MAIN = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
_START_S = 60.0


def _config(*, node_cpus: int, most_nodes: int, idle_s: float) -> dict[str, object]:
    worker = {
        "resources": {"CPU": node_cpus},
        "node_config": {},
        "min_workers": 0,
        "max_workers": most_nodes,
    }
    head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    return {
        "cluster_name": "rewards",
        "max_workers": most_nodes,
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": idle_s / 60,
        "provider": {"type": "fake_multinode", "head_node_id": "fake_head_node_id"},
        "available_node_types": {"worker": worker, "ray.head.default": head},
        "head_node_type": "ray.head.default",
    }


@contextlib.contextmanager
def autoscaled(*, node_cpus: int, most_nodes: int, idle_s: float) -> Iterator[str]:
    """Start a head without processors; yield its address."""
    with tempfile.TemporaryDirectory(prefix="rollart-scaled-") as directory:
        config = Path(directory) / "autoscaling.json"
        options = _config(node_cpus=node_cpus, most_nodes=most_nodes, idle_s=idle_s)
        config.write_text(json.dumps(options))
        log = Path(directory) / "head.log"
        with log.open("wb") as output:
            subprocess.Popen(
                [
                    *(sys.executable, "-c", _MAIN, "start", "--head", "--block", "--port=0"),
                    *(f"--autoscaling-config={config}", f"--temp-dir={directory}/ray"),
                    *("--num-cpus=0", "--include-dashboard=false"),
                    *("--node-ip-address=127.0.0.1", f"--object-store-memory={100 * 2**20}"),
                ],
                env={**os.environ, "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield _address(Path(directory), log)
        finally:
            _end(directory)


def _address(directory: Path, log: Path) -> str:
    """Wait for the head and return where it listens."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        found = directory / "ray" / "ray_current_cluster"
        if found.exists() and (address := found.read_text().strip()):
            return address
        time.sleep(0.2)
    raise AssertionError(f"the head did not start: {log.read_text()[-2000:]}")


def _end(directory: str) -> None:
    """Kill every process that has the directory in its command line, until none is left."""
    while pids := _members(directory):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.2)


def _members(directory: str) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if directory.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]
