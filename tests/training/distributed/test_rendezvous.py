"""Where ranks meet, without ranks."""

import os
import socket

import pytest

from rollart.errors import ConfigError, UserError
from rollart.training.distributed.rendezvous import (
    LOOPBACK,
    enter_meeting,
    meeting_addresses,
    open_meeting,
    use_interface_of,
)


def test_ranks_of_one_machine_meet_on_loopback_and_others_where_they_are_reached():
    assert meeting_addresses(["10.0.0.7", "10.0.0.7"]) == [LOOPBACK, LOOPBACK]
    assert meeting_addresses(["10.0.0.7", "10.0.0.8"]) == ["10.0.0.7", "10.0.0.8"]


def test_what_one_rank_writes_at_a_meeting_another_reads():
    table, rendezvous = open_meeting("127.0.0.2", ranks=2, timeout_s=60.0)
    other = enter_meeting(rendezvous, ranks=2, timeout_s=60.0)
    other.set("rank 1", "is here")
    assert table.get("rank 1") == b"is here"


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
    with pytest.raises(ConfigError, match="rendezvous = 'file:///x': ranks meet at tcp://HOST:PO"):
        enter_meeting("file:///x", ranks=2, timeout_s=60.0)


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
