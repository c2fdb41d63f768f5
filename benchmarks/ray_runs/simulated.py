"""A Ray cluster of several machines, simulated: each node is a raylet of its own on this one.

A node that is removed is killed, with all its actors and agents, as if its machine had lost power.
A dead node is noticed after three unanswered health checks half a second apart, instead of Ray's
usual 15 s; a check may take long to be answered, as two busy cores make it. Nothing is spilled to
disk: what the object store of a node has no room for is refused.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from secrets import token_hex
from types import TracebackType
from typing import Any, Self

# Before Ray is loaded, which reads them once; nodes and drivers started from here inherit them.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))

from ray.cluster_utils import Cluster

from benchmarks.ray_runs.families import children, family, kill

_SYSTEM = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
    "local_fs_capacity_threshold": 0.0,
    "prestart_worker_first_driver": False,
}
_STORE_BYTES = 100 * 2**20
_PLAIN = {
    "object_store_memory": _STORE_BYTES,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}
"""What every node is started with: processes nobody here needs would take the cores' time."""


class SimulatedCluster:
    """A head and named nodes that come and go."""

    def __init__(self, *, cpus: int = 4, **resources: float) -> None:
        """Start the head with so many CPUs and custom resources."""
        head = {"num_cpus": cpus, "resources": resources, "_system_config": _SYSTEM, **_PLAIN}
        with _nothing_left():
            self._cluster = Cluster(
                initialize_head=True, shutdown_at_exit=False, head_node_args=head
            )
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Where the head listens."""
        return str(self._cluster.address)

    def add(self, name: str, *, cpus: float = 2, **resources: float) -> None:
        """Let a machine join."""
        with _nothing_left():
            self._nodes[name] = self._cluster.add_node(num_cpus=cpus, resources=resources, **_PLAIN)

    def remove(self, name: str) -> None:
        """Kill a machine."""
        self._kill(self._nodes.pop(name))

    def remove_head(self) -> None:
        """Kill the head, and with it the cluster."""
        self._kill(self._cluster.head_node)

    def close(self) -> None:
        """End every node."""
        for name in list(self._nodes):
            self.remove(name)
        if self._cluster.head_node is not None:
            self.remove_head()

    def _kill(self, node: Any) -> None:
        started = [each.process.pid for kind in node.all_processes.values() for each in kind]
        for pid in started:
            kill(family(pid))
        self._cluster.remove_node(node, allow_graceful=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def _nothing_left() -> Generator[None]:
    """Let nothing outlive a node that did not start."""
    before = children(os.getpid())
    try:
        yield
    except BaseException:
        for pid in children(os.getpid()):
            if pid not in before:
                kill(family(pid))
        raise
