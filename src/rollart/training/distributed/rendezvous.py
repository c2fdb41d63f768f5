"""Where the ranks of a trainer meet, and the addresses by which they reach each other.

The meeting is a table of addresses on the first rank's machine, reached over TCP. The first rank
listens before the others learn where, on the one address they reach it by: on loopback where all
ranks are on one machine. A meeting serves one group of ranks once; a group made again meets again.
The data connections that follow use the interface of each rank's own address.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from rollart.errors import ConfigError, UserError

_Table: Any = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
_SCHEME = "tcp://"
_SIOCGIFADDR = 0x8915
_REQUEST_BYTES = 256
_ADDRESS = slice(20, 24)
"""Where the kernel's answer holds an interface's IPv4 address."""


def alone() -> Any:
    """Return the table of a world of one."""
    return dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]


def open_meeting(address: str, *, ranks: int, timeout_s: float) -> tuple[Any, str]:
    """Listen on an address of this machine; return the table and how the others reach it."""
    try:
        listener = socket.create_server((address, 0))
    except OSError as error:
        raise UserError(
            f"training ranks cannot meet at {address}: {error.strerror}; it must be an address of "
            "the first rank's machine"
        ) from error
    port = listener.getsockname()[1]
    table = _Table(
        address,
        port,
        ranks,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return table, f"{_SCHEME}{address}:{port}"


def enter_meeting(rendezvous: str, *, ranks: int, timeout_s: float) -> Any:
    """Return the table that the first rank keeps."""
    address, _, port = rendezvous.removeprefix(_SCHEME).rpartition(":")
    if not rendezvous.startswith(_SCHEME) or not address or not port.isdecimal():
        raise ConfigError("rendezvous", rendezvous, "ranks meet at tcp://HOST:PORT")
    return _Table(address, int(port), ranks, is_master=False, timeout=timedelta(seconds=timeout_s))


def use_interface_of(address: str) -> None:
    """Let collectives talk over the interface that has an address, unless the user chose one."""
    name = _interface_of(address)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _interface_of(address: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_REQUEST_BYTES}s", name.encode())
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[_ADDRESS]) == address:
                return name
    return None


LOOPBACK = "127.0.0.1"


def meeting_addresses(machines: Sequence[str]) -> list[str]:
    """Return where each rank is reached by the others: on loopback if they share a machine."""
    return [LOOPBACK] * len(machines) if len(set(machines)) == 1 else list(machines)
