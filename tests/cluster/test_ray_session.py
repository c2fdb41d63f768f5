"""Clusters that are not there, in one message each, and who can reach one of our own."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from drivers import in_a_driver

from benchmarks.ray_runs.families import family
from rollart.cluster.ray_session import check_joinable, connected, head_address, is_there, nodes
from rollart.errors import UserError

LOOPBACK = ("0100007F", "0" * 16 + "FFFF00000100007F", "0" * 31 + "1")
"""As the kernel writes it: of version 4, the same within version 6, and of version 6."""
ASK = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_keys(b"", namespace=None, timeout=60)
"""


def join(address):
    with connected(address):
        pass


@pytest.mark.parametrize("way", [join, check_joinable])
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:1", "auto"])
def test_no_cluster_at_an_address_is_one_message(address, way, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # what "auto" finds: a cluster that is gone
    with pytest.raises(UserError) as caught:
        way(address)
    text = str(caught.value)
    assert text.startswith(f"--address {address}: no Ray cluster could be joined (")
    assert text.endswith(
        "start one with `ray start --head`, or use --address local for one on this machine"
    )
    assert "\n" not in text


def test_auto_is_where_ray_finds_a_cluster(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        check_joinable("auto")
    with pytest.raises(UserError, match=r"joined \(127.0.0.1:\d+: .*refused"):
        check_joinable("auto")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(UserError, match="local: write it as host:port"):
        check_joinable("auto")


def test_a_ray_of_our_own_need_not_be_there_yet():
    check_joinable("local")


def test_a_head_is_there_while_it_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert is_there(address)
    assert not is_there(address)


def listening(pids):
    """Return the addresses that processes listen on, as the kernel writes them."""
    links: set[str] = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):  # it ended, or closed the file
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    links.add(str(link.readlink()))
    tables = (Path("/proc/net/tcp").read_text(), Path("/proc/net/tcp6").read_text())
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    listens = "0A"
    return [row[1] for row in rows if row[3] == listens and f"socket:[{row[9]}]" in links]


def reach_a_ray_of_our_own(_tmp_path):
    assert [node.address for node in nodes()] == ["127.0.0.1"]
    heard = listening(family(os.getpid()))
    assert len(heard) >= 3
    assert {address.partition(":")[0] for address in heard} <= set(LOOPBACK)
    nobody = {name: value for name, value in os.environ.items() if "RAY_" not in name}
    ours = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    assert asked(nobody) == (1, True)
    assert asked(nobody | ours | {"RAY_AUTH_TOKEN": "guessed"}) == (1, True)
    assert asked(nobody | ours) == (0, False)


def asked(env):
    """Ask the head for something; return how that ended and whether the token was the reason."""
    command = [sys.executable, "-c", ASK, head_address()]
    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=180
    )
    return ended.returncode, "AuthenticationError" in ended.stderr


def test_a_ray_of_our_own_hears_only_this_machine_and_only_who_knows_its_token(
    monkeypatch, tmp_path
):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    in_a_driver(f"{__name__}:reach_a_ray_of_our_own", "local", tmp_path)
    assert not (tmp_path / ".ray").exists()
