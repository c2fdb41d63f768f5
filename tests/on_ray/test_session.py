"""Clusters that are not there, in one message each."""

import socket

import pytest

from rollart.errors import UserError
from rollart.on_ray.session import connected, is_there


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:1"])
def test_no_cluster_at_an_address_is_one_message(address):
    with pytest.raises(UserError) as caught, connected(address):
        pass
    text = str(caught.value)
    assert text.startswith(f"--address {address}: no Ray cluster could be joined (")
    assert text.endswith(
        "start one with `ray start --head`, or use --address local for one on this machine"
    )
    assert "\n" not in text


def test_a_head_is_there_while_it_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert is_there(address)
    assert not is_there(address)
