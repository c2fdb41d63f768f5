"""The connection to a Ray cluster, one per process, and what the cluster has.

"local" starts a Ray of our own on this machine and ends it with the program: it listens on loopback
only, to those who know a token that was drawn for it and exists only in the environment of its
processes. "auto" or HOST:PORT joins a running one and leaves it running; who may reach that one is
decided by those who started it.

When a cluster is lost, a call into Ray may never return: `guarded` ends the process then.
"""

import atexit
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Mapping,
)
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

from rollart.checkpoints.save import checkpoints
from rollart.config import Config
from rollart.errors import ClusterError, ConfigError, UserError, first_line, printable


class Machine(Protocol):
    """A node of a cluster.

    Example:
        >>> machine.address
        '10.0.0.7'

    """

    @property
    def address(self) -> str:
        """Where it is."""
        ...


def check_cluster(config: Config, nodes: Iterable[Machine]) -> None:
    """Raise a ConfigError where a config cannot run on these nodes."""
    machines = {node.address for node in nodes}
    store = config.weights.store
    if store == "shared_memory" and len(machines) > 1:
        fix = f'{len(machines)} machines share no memory: use weights.store = "ray"'
        raise ConfigError("weights.store", store, fix)
    if store == "memory":
        fix = 'on Ray the trainer is a process of its own: use "shared_memory" or "ray"'
        raise ConfigError("weights.store", store, fix)


def cluster_lost(address: str, directory: Path) -> ClusterError:
    """Return the error for a cluster that is lost during a run."""
    kept = checkpoints(directory / "checkpoints")
    if not kept:
        return ClusterError(
            f"the Ray cluster at {address} is lost, and there was no checkpoint yet: "
            "run.checkpoint_every says how often one is written"
        )
    return ClusterError(
        f"the Ray cluster at {address} is lost; {kept[-1]} is kept. When there is a cluster "
        f"again, continue with: rollart train --resume {directory} --address HOST:PORT"
    )


try:
    import ray
except ModuleNotFoundError as error:
    raise UserError("--address needs Ray: pip install 'rollart[ray]'") from error

LOCAL, AUTO = "local", "auto"
_LOOK_S = 5.0
_FAILED = 2
"""The exit code of mistakes that the user can fix."""
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_worker_niceness": "0",  # else a Ray of our own yields to whatever else the machine does
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A machine of the cluster that is alive.

    Example:
        >>> RayNode(id="6f0c", address="10.0.0.7", resources={"CPU": 8.0, "H20": 1.0}, labels={})

    """

    id: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


def check_joinable(address: str) -> None:
    """Raise a UserError at once if there is no cluster to join."""
    try:
        if address != LOCAL:
            _find(address)
    except Exception as error:  # as of joining it
        raise _not_joined(address, error) from error


@contextmanager
def connected(address: str, *, resources: Mapping[str, float] | None = None) -> Generator[None]:
    """Be connected to a cluster until the block ends.

    `resources` are what a Ray of our own has beside this machine's.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Ray prints the last hundred lines of every raylet that ends; losses are reported by us, and
    # the lines stay in Ray's own logs. There is no setting for it.
    inside: Any = sys.modules["ray._private.worker"]
    inside.print_to_stdstream = _print_nothing
    common: dict[str, Any] = {
        "namespace": "rollart",
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": False,
    }
    try:
        if address == LOCAL:
            os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))  # else Ray leaves one in a file
            with _on_loopback():
                own = dict(resources or {})
                ray.init(address="local", include_dashboard=False, resources=own, **common)
        else:
            ray.init(address=_find(address), **common)
    except Exception as error:  # Ray raises whatever there is, bare `Exception` too
        raise _not_joined(address, error) from error
    head = head_address()
    try:
        yield
    finally:
        if is_there(head):
            ray.shutdown()
        else:
            _abandon()


def nodes() -> list[RayNode]:
    """Return the machines that are alive."""
    return [
        RayNode(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            resources=node["Resources"],
            labels=node.get("Labels", {}),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def here() -> str:
    """Return the id of the node this process is on."""
    return ray.get_runtime_context().get_node_id()


def head_address() -> str:
    """Return where the cluster's head listens."""
    return ray.get_runtime_context().gcs_address


def is_there(address: str) -> bool:
    """Say whether anything listens at a cluster's address."""
    try:
        _look_for(address)
    except OSError:
        return False
    return True


def end_now(last_words: str = "") -> None:
    """End this process at once, as after any mistake of the user."""
    if last_words:
        sys.stderr.write(f"error: {printable(last_words)}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_FAILED)


@contextmanager
def _on_loopback() -> Generator[None]:
    """Let a Ray that is started listen on loopback, as it does by itself where it has no clusters.

    Its Python reads the setting when it is loaded, its processes when they start.
    """
    constants: Any = sys.modules["ray._private.ray_constants"]
    name, before = constants.ENABLE_RAY_CLUSTERS_ENV_VAR, constants.ENABLE_RAY_CLUSTER
    said = os.environ.get(name)
    os.environ[name], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        del os.environ[name]
        if said is not None:
            os.environ[name] = said


def _abandon() -> None:
    """Leave a lost cluster.

    Ray may wait for its head for a minute and then end this process by itself, as a crash; where it
    does, this process ends as soon as its work is done, as after any mistake of the user.
    """
    leaving = threading.Thread(target=ray.shutdown, daemon=True)
    leaving.start()
    leaving.join(_LOOK_S)
    if leaving.is_alive():
        atexit.register(end_now)


def _print_nothing(*_args: object, **_options: object) -> None:
    pass


def _find(address: str) -> str:
    """Return where the head of a cluster listens; "auto" is where Ray says there is one.

    Ray also remembers clusters that ended long ago.
    """
    if address != AUTO:
        _look_for(address)
        return address
    services: Any = sys.modules["ray._private.services"]
    found: str = services.get_ray_address_from_environment(address, None)
    try:
        _look_for(found)
    except (OSError, ValueError) as error:
        raise ConnectionError(f"{found}: {error}") from error
    return found


def _not_joined(address: str, error: BaseException) -> UserError:
    return UserError(
        f"--address {address}: no Ray cluster could be joined ({first_line(error)}); start one "
        "with `ray start --head`, or use --address local for one on this machine"
    )


def _look_for(address: str) -> None:
    """Connect once: Ray itself would try for half a minute and then say less."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("write it as host:port")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_S).close()


_GUARD_LOOK_S = 1.0


@contextmanager
def guarded(
    head: str, last_words: Callable[[], str], *, patience_s: float = 30.0
) -> Generator[None]:
    """End this process if the head is lost for long and the block has still not ended.

    The event loop notices sooner and ends the run properly; but any call it makes into Ray
    meanwhile may wait for the head, for minutes, and hold it. It prints `last_words` then.
    """
    is_over = threading.Event()

    def look() -> None:
        seen_s = time.monotonic()
        while not is_over.wait(_GUARD_LOOK_S):
            if is_there(head):
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s > patience_s and not is_over.is_set():
                end_now(last_words())

    threading.Thread(target=look, daemon=True, name="ray-guard").start()
    try:
        yield
    finally:
        is_over.set()
