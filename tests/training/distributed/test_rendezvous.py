"""Where ranks meet, without ranks."""

import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from rollart.errors import ConfigError, UserError
from rollart.training.distributed.rendezvous import (
    LOOPBACK,
    _TcpTable,
    enter_meeting,
    meeting_addresses,
    open_meeting,
    use_interface_of,
)


def test_ranks_of_one_machine_meet_on_loopback_and_others_where_they_are_reached():
    assert meeting_addresses(["10.0.0.7", "10.0.0.7"]) == [LOOPBACK, LOOPBACK]
    assert meeting_addresses(["10.0.0.7", "10.0.0.8"]) == ["10.0.0.7", "10.0.0.8"]


@pytest.mark.parametrize("address", [LOOPBACK, "127.0.0.2"])
def test_what_one_rank_writes_at_a_meeting_another_reads(address):
    table, rendezvous = open_meeting(address, ranks=2, timeout_s=60.0)
    other = enter_meeting(rendezvous, ranks=2, timeout_s=60.0)
    other.set("rank 1", "is here")
    assert table.get("rank 1") == b"is here"


def test_ranks_of_one_machine_meet_where_no_other_user_can_look():
    _table, rendezvous = open_meeting(LOOPBACK, ranks=2, timeout_s=60.0)
    directory = Path(rendezvous.removeprefix("file://")).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o755)
    with pytest.raises(UserError, match=r"other users can enter it; .* with mode 0700"):
        enter_meeting(rendezvous, ranks=2, timeout_s=60.0)
    with pytest.raises(UserError, match=r"No such file or directory; .* share a file system"):
        enter_meeting("file:///x/table", ranks=2, timeout_s=60.0)


def test_who_does_not_know_the_secret_of_a_meeting_finds_and_changes_nothing():
    table, rendezvous = open_meeting("127.0.0.2", ranks=2, timeout_s=60.0)
    table.set("rank 0", "is here")
    stranger = _TcpTable(
        "127.0.0.2", int(rendezvous.rpartition(":")[2]), 2, timeout=timedelta(seconds=60)
    )
    assert not stranger.check(["rank 0"])
    assert not stranger.delete_key("rank 0")
    stranger.set("rank 0", "is elsewhere")
    assert table.get("rank 0") == b"is here"
    assert open_meeting("127.0.0.2", ranks=2, timeout_s=60.0)[1] != rendezvous


def test_a_meeting_is_heard_on_its_own_address_only():
    _table, rendezvous = open_meeting("127.0.0.2", ranks=2, timeout_s=60.0)
    port = int(rendezvous.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port), timeout=60.0)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(
        UserError, match=r"training ranks cannot meet at 192\.0\.2\.1: Cannot assign"
    ):
        open_meeting("192.0.2.1", ranks=2, timeout_s=60.0)


def test_a_place_that_is_no_meeting_is_refused():
    for place in ("here", "tcp://10.0.0.7:80"):
        wanted = f"rendezvous = '{place}': ranks meet at file://PATH or tcp://KEY@HOST:PORT"
        with pytest.raises(ConfigError, match=wanted):
            enter_meeting(place, ranks=2, timeout_s=60.0)
    with pytest.raises(ConfigError, match=r"rendezvous = 'tcp://…@10\.0\.0\.7:x'"):
        enter_meeting("tcp://secret@10.0.0.7:x", ranks=2, timeout_s=60.0)


def test_collectives_use_the_interface_of_an_address_unless_told_otherwise(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    use_interface_of("192.0.2.1")
    assert not told()
    use_interface_of(LOOPBACK)
    assert told() == ["lo", "lo"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    use_interface_of(LOOPBACK)
    assert told() == ["eth7", "lo"]


def told() -> list[str]:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return [os.environ[name] for name in names if name in os.environ]
