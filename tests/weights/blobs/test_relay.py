"""The weight relay: tokens, deaths, and reading from memory instead of the wire."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rollart.errors import StorageError
from rollart.serialization.frames import make_frame
from rollart.types import Version
from rollart.weights.blobs import relay
from rollart.weights.blobs.relay import (
    TOKEN_VARIABLE,
    RelayBlobs,
    RelayServer,
    receive_frame,
    send_frame,
)
from rollart.weights.buckets import BucketStore


@pytest.fixture
def server(tmp_path):
    server = RelayServer(tmp_path, token="right")
    yield server
    server.close()


def connect(server):
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)))


def test_a_client_on_this_machine_reads_the_relays_files(server, tmp_path):
    blobs = RelayBlobs(server.address, token="right")
    blobs.put("key", b"content")
    assert blobs._near is not None
    assert bytes(blobs.get("key")) == b"content"
    assert (tmp_path / "key").read_bytes() == b"content"
    blobs.close()


def test_without_the_token_nothing_is_served(server):
    with pytest.raises(
        StorageError, match=f"refused the token: set the same {TOKEN_VARIABLE} there"
    ):
        RelayBlobs(server.address, token="wrong")
    with connect(server) as connection:
        send_frame(connection, {"do": "get", "key": "head"})
        assert receive_frame(connection) == ({"error": "wrong token"}, b"")
        assert receive_frame(connection) is None


def test_a_body_before_the_token_is_not_even_read(server):
    with connect(server) as connection:
        try:
            send_frame(connection, {"token": "right"}, b"x")
            answer = receive_frame(connection)
        except ConnectionError:  # a reset, because the body was left unread
            answer = None
        assert answer is None


@pytest.mark.parametrize("key", ["../out", "/etc/passwd", "", ".hidden", "a/b"])
def test_keys_that_leave_the_directory_are_refused(server, tmp_path, key):
    blobs = RelayBlobs(server.address, token="right")
    with pytest.raises(StorageError, match="is not a valid key"):
        blobs.put(key, b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["relay"]
    blobs.close()


def test_nonsense_ends_only_its_own_connection(server):
    with connect(server) as connection:
        connection.sendall(b"\xff" * 16)
        assert connection.recv(1) == b""
    blobs = RelayBlobs(server.address, token="right")
    blobs.put("key", b"still here")
    blobs.close()


def test_what_the_relay_cannot_store_is_told_to_the_writer(server, tmp_path):
    blobs = RelayBlobs(server.address, token="right")
    tmp_path.chmod(0o700)
    (tmp_path / "head").mkdir()
    store = BucketStore(blobs)
    blobs._near = None
    with pytest.raises(StorageError, match=r"the weight relay at 127.0.0.1:.*: cannot"):
        store.publish(Version(1), {"w": np.zeros(3)})
    store.close()


def test_no_relay_is_one_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(StorageError, match=f"the weight relay at 127.0.0.1:{port} does not answer"):
        RelayBlobs(f"127.0.0.1:{port}", token="right")
    with pytest.raises(StorageError, match="use host:port"):
        RelayBlobs("nowhere", token="right")


def test_a_missing_token_is_one_clear_error(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE)
    with pytest.raises(StorageError, match=f"set {TOKEN_VARIABLE} on both sides"):
        RelayBlobs("127.0.0.1:1")


def start(*options):
    relay = subprocess.Popen(
        [sys.executable, "-m", "rollart.weights.blobs.relay", *map(str, options)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {TOKEN_VARIABLE: "right"},
    )
    return relay, relay.stdout.readline().strip()


def test_a_relay_that_was_killed_and_started_again_is_found_again(tmp_path):
    relay, address = start("--directory", tmp_path)
    store = BucketStore(RelayBlobs(address, token="right"), bucket_bytes=1024)
    store.publish(Version(1), {"w": np.zeros(1000)})
    relay.kill()
    relay.communicate()
    with pytest.raises(StorageError, match=r"the weight relay at .* does not answer"):
        store.publish(Version(2), {"w": np.ones(1000)})
    relay, again = start("--directory", tmp_path, "--port", address.split(":")[1])
    assert again == address
    assert store.latest() == 1
    store.publish(Version(2), {"w": np.ones(1000)})
    assert store.fetch(Version(2))["w"].tolist() == [1.0] * 1000
    store.close()
    relay.terminate()
    relay.communicate()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_relay_that_was_started_again_elsewhere_is_found_by_those_who_read_its_files(end):
    relay, address = start()
    writer = BucketStore(RelayBlobs(address, token="right"))
    blobs = RelayBlobs(address, token="right")
    reader = BucketStore(blobs)
    writer.publish(Version(1), {"w": np.zeros(10)})
    assert reader.latest() == 1
    first = blobs._near._directory
    relay.send_signal(end)
    relay.communicate()
    relay, again = start("--port", address.split(":")[1])
    assert again == address
    assert reader.latest() is None
    assert blobs._near._directory != first
    writer.publish(Version(2), {"w": np.ones(10)})
    assert reader.fetch(Version(2))["w"].tolist() == [1.0] * 10
    writer.close()
    reader.close()
    relay.terminate()
    relay.communicate()
    with pytest.raises(StorageError, match=r"the weight relay at .* does not answer"):
        reader.latest()


def test_a_relay_removes_what_it_kept_in_shared_memory_when_it_is_ended():
    relay, address = start()
    blobs = RelayBlobs(address, token="right")
    directory = Path(str(blobs._near._directory))
    assert directory.is_dir()
    blobs.close()
    relay.send_signal(signal.SIGTERM)
    relay.communicate()
    assert (relay.returncode, directory.exists()) == (0, False)


def test_a_greeting_that_comes_too_slowly_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(relay, "CONNECT_S", 0.4)
    server = RelayServer(tmp_path, token="right")
    begun_s = time.monotonic()
    with connect(server) as connection:
        connection.settimeout(60)
        with pytest.raises(ConnectionError):
            for _ in range(1000):  # each byte well within the time of one read
                connection.sendall(b"R")
                time.sleep(0.1)
    assert time.monotonic() - begun_s < 30
    server.close()


def test_strangers_keep_no_client_out(server, monkeypatch):
    monkeypatch.setattr(relay, "MOST_STRANGERS", 3)
    strangers = [connect(server) for _ in range(8)]
    for late in strangers[:5]:
        late.settimeout(60)
        assert late.recv(1) == b""  # closed to make room
    blobs = RelayBlobs(server.address, token="right")
    blobs.put("key", b"content")
    monkeypatch.setattr(relay, "MOST_CONNECTIONS", 1)
    with connect(server) as refused:
        refused.settimeout(60)
        assert refused.recv(1) == b""
    assert bytes(blobs.get("key")) == b"content"
    blobs.close()
    for each in strangers:
        each.close()


def test_a_head_that_is_nested_too_deeply_ends_its_connection_alone(server, capfd):
    blobs = RelayBlobs(server.address, token="right")
    nested = b'{"do":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    with connect(server) as connection:
        connection.settimeout(60)
        send_frame(connection, {"token": "right"})
        assert receive_frame(connection) is not None
        for piece in make_frame(nested):
            connection.sendall(piece)
        assert receive_frame(connection) is None
    blobs.put("key", b"content")
    assert bytes(blobs.get("key")) == b"content"
    blobs.close()
    assert "Traceback" not in capfd.readouterr().err
