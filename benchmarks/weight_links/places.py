"""What keeps the buckets beside the engines, and how either side of the link opens it.

Every store gets two places, one for the naive order and one for the overlapped, so that what is
measured of one is not prefetched for the other.

- shared_memory: a relay keeps buckets in /dev/shm; the trainer reaches it over TCP, the engines
  read its memory;
- files: the same relay over a directory on disk; the engines read the files;
- mooncake: a master and a client that lends memory; both sides are plain clients over TCP;
- ray: a Ray node on either side; the buckets lie in the object store of the engines' node.
"""

import contextlib
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.weight_links.link import Link
from benchmarks.weight_links.ray_nodes import Joining, start_ray
from rollart.errors import UserError

ORDERS = ("naive", "overlapped")
STORES = ("shared_memory", "files", "mooncake", "ray")
MOONCAKE_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Openings:
    """Kind and place of the store of each order, as each side opens it; and the environment."""

    trainer: dict[str, tuple[str, str]]
    engines: dict[str, tuple[str, str]]
    env: dict[str, str]
    ray: Joining | None = None
    """The Ray cluster both sides are to join, if there is one."""


@contextlib.contextmanager
def open_places(store: str, link: Link) -> Generator[Openings]:
    """Start what keeps the buckets on the engines' side, until the block ends."""
    with contextlib.ExitStack() as stack:
        if store == "mooncake":
            master = _start_mooncake(stack, link)
            both = {order: ("mooncake", f"{master}/{order}") for order in ORDERS}
            yield Openings(trainer=both, engines=both, env={})
            return
        if store == "ray":
            joining, env = start_ray(stack, link)
            both = {order: ("ray", order) for order in ORDERS}
            yield Openings(trainer=both, engines=both, env=env, ray=joining)
            return
        env = {"ROLLART_WEIGHTS_TOKEN": secrets.token_hex(16)}
        base = Path("/dev/shm") if store == "shared_memory" else Path(tempfile.gettempdir())
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="rollart-bench-", dir=base))
        trainer: dict[str, tuple[str, str]] = {}
        engines: dict[str, tuple[str, str]] = {}
        for order in ORDERS:
            directory = f"{root}/{order}"
            address = _start_relay(stack, link, directory, env)
            trainer[order] = ("relay", address)
            engines[order] = ("files", directory) if store == "files" else ("relay", address)
        yield Openings(trainer=trainer, engines=engines, env=env)


def _start_relay(
    stack: contextlib.ExitStack, link: Link, directory: str, env: dict[str, str]
) -> str:
    argv = [sys.executable, "-m", "rollart.weights.blobs.relay", "--host", link.engines_host]
    command = ["env", *(f"{name}={value}" for name, value in env.items()), *argv]
    relay = subprocess.Popen(
        link.command("engines", *command, "--directory", directory),
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(_end, relay)
    assert relay.stdout is not None
    address = relay.stdout.readline().strip()
    if not address:
        raise UserError("the weight relay of the benchmark did not start")
    return address


def _start_mooncake(stack: contextlib.ExitStack, link: Link) -> str:
    host, port, lender_port = link.engines_host, 51051, 51052
    log = subprocess.DEVNULL
    programs = {name: str(Path(sys.executable).with_name(name)) for name in _MOONCAKE}
    for name, options in _MOONCAKE.items():
        known = {"host": host, "port": port, "lender_port": lender_port, "bytes": MOONCAKE_BYTES}
        argv = [programs[name], *(option.format(**known) for option in options)]
        process = subprocess.Popen(link.command("engines", *argv), stdout=log, stderr=log)
        stack.callback(_end, process)
        _await_port(link, host, port if name == "mooncake_master" else lender_port)
    return f"{host}:{port}"


_MOONCAKE = {
    "mooncake_master": ("--rpc_address={host}", "--rpc_port={port}", "--metrics_host={host}"),
    "mooncake_client": (
        "--host={host}",
        "--port={lender_port}",
        "--global_segment_size={bytes}",
        "--metadata_server=P2PHANDSHAKE",
        "--master_server_address={host}:{port}",
    ),
}


def _await_port(link: Link, host: str, port: int) -> None:
    probe = f"import socket; socket.create_connection(({host!r}, {port}), 1)"
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        command = link.command("engines", sys.executable, "-S", "-c", probe)
        if not subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
            return
        time.sleep(0.1)
    raise UserError(f"nothing listens on {host}:{port} in the engines' namespace")


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
