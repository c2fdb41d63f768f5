"""Where the ranks of a trainer meet, and the addresses by which they reach each other.

The meeting is a table of addresses that must not be read or changed by anyone else: who can, can
join the ranks or lead them elsewhere. Where all ranks are on one machine, it is a file in a
directory that only this user can enter. Otherwise the first rank keeps it and the others reach it
over TCP; the first rank listens before they learn where, on the one address they reach it by. A
TCP table asks nobody who they are, so each of its keys starts with a secret, which reaches the
ranks as the arguments of their calls do, and it cannot be listed. A meeting serves one group of
ranks once; a group made again meets again.

The data connections that follow use the interface of each rank's own address. They are gloo's and
NCCL's own and ask for no secret: ranks on several machines need a network of their own.
"""

import atexit
import fcntl
import os
import secrets
import shutil
import socket
import stat
import struct
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from rollart.errors import ConfigError, UserError

_TcpTable: Any = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
_FileTable: Any = dist.FileStore  # pyright: ignore[reportPrivateImportUsage]
_Prefixed: Any = dist.PrefixStore  # pyright: ignore[reportPrivateImportUsage]
_TCP, _FILE = "tcp://", "file://"
_SIOCGIFADDR = 0x8915
_REQUEST_BYTES = 256
_ADDRESS = slice(20, 24)
"""Where the kernel's answer holds an interface's IPv4 address."""
LOOPBACK = "127.0.0.1"
"""The address of ranks that share a machine."""


def alone() -> Any:
    """Return the table of a world of one."""
    return dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]


def open_meeting(address: str, *, ranks: int, timeout_s: float) -> tuple[Any, str]:
    """Open a meeting on this machine; return the table and where the others find it."""
    if address == LOOPBACK:
        directory = tempfile.mkdtemp(prefix="rollart-ranks-")  # only this user can enter it
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        rendezvous = f"{_FILE}{directory}/table"
        return enter_meeting(rendezvous, ranks=ranks, timeout_s=timeout_s), rendezvous
    try:
        listener = socket.create_server((address, 0))
    except OSError as error:
        raise UserError(
            f"training ranks cannot meet at {address}: {error.strerror}; it must be an address of "
            "the first rank's machine"
        ) from error
    port, secret = listener.getsockname()[1], secrets.token_hex(32)
    table = _TcpTable(
        address,
        port,
        ranks,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return _Prefixed(secret, table), f"{_TCP}{secret}@{address}:{port}"


def enter_meeting(rendezvous: str, *, ranks: int, timeout_s: float) -> Any:
    """Return the table of a meeting that the first rank opened."""
    timeout = timedelta(seconds=timeout_s)
    if rendezvous.startswith(_FILE):
        path = Path(rendezvous.removeprefix(_FILE))
        _check_private(path.parent)
        table = _FileTable(str(path), ranks)
        table.set_timeout(timeout)
        return table
    secret, _, place = rendezvous.removeprefix(_TCP).rpartition("@")
    address, _, port = place.rpartition(":")
    if not rendezvous.startswith(_TCP) or not secret or not address or not port.isdecimal():
        shown = rendezvous.replace(secret, "…") if secret else rendezvous
        raise ConfigError("rendezvous", shown, "ranks meet at file://PATH or tcp://KEY@HOST:PORT")
    return _Prefixed(secret, _TcpTable(address, int(port), ranks, is_master=False, timeout=timeout))


def _check_private(directory: Path) -> None:
    """Refuse a directory that is missing here or that another user could have made or enter."""
    try:
        found = directory.lstat()
    except OSError as error:
        raise UserError(
            f"training ranks cannot meet in {directory}: {error.strerror}; ranks that reach each "
            "other on loopback must share a file system"
        ) from error
    is_open = found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or is_open:
        raise UserError(
            f"training ranks cannot meet in {directory}: other users can enter it; it must be a "
            "directory of this user with mode 0700"
        )


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


def meeting_addresses(machines: Sequence[str]) -> list[str]:
    """Return where each rank is reached by the others: on loopback if they share a machine."""
    return [LOOPBACK] * len(machines) if len(set(machines)) == 1 else list(machines)
