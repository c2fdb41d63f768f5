"""A Mooncake of our own on loopback: a master and a process that lends memory, ended by id."""

import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

SEGMENT_BYTES = 64 * 2**20


def why_not():
    """Return why Mooncake cannot run here; None if it can."""
    try:
        import mooncake.store  # noqa: F401
    except ImportError as error:
        return f"Mooncake cannot be loaded: {error}"
    return None if _program("mooncake_master") else "mooncake_master is not installed"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@contextmanager
def running_master(log: Path, *, segment_bytes=SEGMENT_BYTES):
    """Run a master and one lender of memory; gives the master's address and both processes."""
    port = free_port()
    processes = []
    with log.open("wb") as out:
        try:
            processes.append(
                _start(
                    out,
                    "mooncake_master",
                    f"--rpc_port={port}",
                    "--rpc_address=127.0.0.1",
                    "--metrics_host=127.0.0.1",
                    f"--metrics_port={free_port()}",
                    "--default_kv_lease_ttl=1s",
                )
            )
            _await_port(port)
            client_port = free_port()
            processes.append(
                _start(
                    out,
                    "mooncake_client",
                    "--host=127.0.0.1",
                    f"--port={client_port}",
                    f"--global_segment_size={segment_bytes}",
                    "--metadata_server=P2PHANDSHAKE",
                    f"--master_server_address=127.0.0.1:{port}",
                )
            )
            _await_port(client_port)
            yield f"127.0.0.1:{port}", processes
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def _program(name):
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def _start(out, name, *options):
    return subprocess.Popen([_program(name), *options], stdout=out, stderr=out)


def _await_port(port):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")
