"""A Ray cluster with its autoscaler, simulated: its nodes are raylets on this machine.

Ray's own autoscaler decides; its provider of fake nodes starts and stops them. All processes have
the cluster's directory in their command line, and are ended by their id when the block ends.
"""

import contextlib
import json
import os
import signal
import socket
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
_STORE_BYTES = 100 * 2**20
_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
_HEAD = "f" * 51 + "00000"
_ENV = {
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": _HEAD,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD,
}


def _config(*, port: int, node_cpus: int, most_nodes: int, idle_s: float) -> dict[str, object]:
    worker = {
        "resources": {"CPU": node_cpus, "object_store_memory": _STORE_BYTES},
        "node_config": {},
        "min_workers": 0,
        "max_workers": most_nodes,
    }
    head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    commands = ("initialization", "setup", "head_setup", "worker_setup")
    starts = ("head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "rewards",
        "max_workers": most_nodes,
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": idle_s / 60,
        "provider": {
            "type": "external",
            "module": _PROVIDER,
            "gcs_address": f"127.0.0.1:{port}",
            "head_node_id": _HEAD,
            "launch_multiple": True,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {"worker": worker, "ray.head.default": head},
        "head_node_type": "ray.head.default",
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{name}_commands": [] for name in (*commands, *starts)},
    }


@contextlib.contextmanager
def autoscaled(*, node_cpus: int, most_nodes: int, idle_s: float) -> Iterator[str]:
    """Start a head without processors; yield its address."""
    with tempfile.TemporaryDirectory(prefix="rollart-scaled-") as directory:
        config = Path(directory) / "autoscaling.json"
        port = _free_port()
        options = _config(port=port, node_cpus=node_cpus, most_nodes=most_nodes, idle_s=idle_s)
        config.write_text(json.dumps(options))
        log = Path(directory) / "head.log"
        with log.open("wb") as output:
            subprocess.Popen(
                [
                    *(sys.executable, "-c", _MAIN, "start", "--head", "--block", f"--port={port}"),
                    *(f"--autoscaling-config={config}", f"--temp-dir={directory}/ray"),
                    *("--num-cpus=0", "--include-dashboard=false"),
                    *("--node-ip-address=127.0.0.1", f"--object-store-memory={_STORE_BYTES}"),
                ],
                env={**os.environ, **_ENV},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield _await_head(port, log)
        finally:
            _end(directory)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _await_head(port: int, log: Path) -> str:
    """Wait for the head and return where it listens."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return f"127.0.0.1:{port}"
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
