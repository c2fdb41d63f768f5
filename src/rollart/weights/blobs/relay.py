"""The weight relay: buckets sent once over a slow link, read beside the engines from memory.

    trainer ── TCP, slow link ──► RelayServer ──► files in shared memory ◄── mmap ── engines

The server runs beside the engines and stores buckets as files, by default in shared memory. Clients
on the same machine read those files directly; only others read over TCP. A client must send the
token first. Connections are not encrypted: use a tunnel over a link that others can read.

Start one with `python -m rollart.weights.blobs.relay --port 7070`; ROLLART_WEIGHTS_TOKEN holds the
token. Requests and answers are frames (`serialization.frames`) whose body is a bucket. Both lengths
are checked before memory is reserved, and no body is read before the token is checked. Who has not
sent the whole token in time is disconnected; only so many connections are held at once, and no more
than a part of them by callers that have not sent it, so strangers keep no client out for long.
"""

import argparse
import contextlib
import hmac
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from rollart.errors import RollartError, StorageError
from rollart.serialization import frames
from rollart.serialization.codec import Codec, CodecError
from rollart.serialization.frames import FrameLimits
from rollart.types import Json
from rollart.weights.blobs.files import FileBlobs
from rollart.weights.shared_memory import remove_directory, remove_leftovers, shared_directory

LARGEST_HEAD_BYTES = 2**16
LARGEST_BODY_BYTES = 2**32
Head = Mapping[str, Json]
"""What a frame is about: `{"do": "get", "key": "head"}`, `{"missing": true}`."""
_HEAD = Codec[Head](Mapping[str, Json], name="head")


class RelayError(ConnectionError):
    """The other side does not speak this protocol, or hung up in the middle."""


def send_frame(connection: socket.socket, head: Head, body: bytes | memoryview = b"") -> None:
    """Send a head and its body."""
    for piece in frames.make_frame(_HEAD.encode(head), body):
        connection.sendall(piece)


def receive_frame(
    connection: socket.socket, *, largest_bytes: int = LARGEST_BODY_BYTES
) -> tuple[Head, memoryview] | None:
    """Return the next head and body; None if the other side hung up before it."""
    limits = FrameLimits(head_bytes=LARGEST_HEAD_BYTES, body_bytes=largest_bytes)
    try:
        frame = frames.read_frame(connection.recv_into, limits=limits)
        return None if frame is None else (_HEAD.decode(bytes(frame[0])), frame[1])
    except CodecError as error:
        raise RelayError(f"not a frame of the weight relay: {error}") from error


TOKEN_VARIABLE = "ROLLART_WEIGHTS_TOKEN"  # noqa: S105 - the name of it, not a token
CONNECT_S = 10.0
"""Time for the whole greeting, however slowly its bytes arrive."""
MOST_CONNECTIONS = 1024
MOST_STRANGERS = 64
"""Connections that may wait for their token; beyond it the oldest is closed for the new one."""
ANSWER_S = 600.0
_MARKER = "relay"


def read_token() -> str:
    """Return the token of this process's environment."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise StorageError(f"the weight relay needs a token: set {TOKEN_VARIABLE} on both sides")
    return token


class RelayServer:
    """Serves the files of a directory to clients that know the token."""

    def __init__(
        self, directory: str | Path, *, token: str, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._directory = Path(directory).resolve()
        self._blobs = FileBlobs(self._directory)
        self._token = token
        self._marker = secrets.token_hex(16)
        self._blobs.put(_MARKER, self._marker.encode())
        try:
            self._listener = socket.create_server((host, port))
        except OSError as error:
            raise StorageError(
                f"the weight relay cannot listen on {host}:{port}: {error.strerror}"
            ) from error
        self._connections: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}
        """Connections that have not sent the token, the oldest first."""
        self._lock = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, name="relay", daemon=True)
        self._accepting.start()

    @property
    def address(self) -> str:
        """Where it listens, as host:port."""
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        """Close all connections; the files stay."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        with self._lock:
            held = list(self._connections)
        for connection in held:
            _shut(connection)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._takes(connection):
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _takes(self, connection: socket.socket) -> bool:
        """Hold a new connection if there is room; strangers make room for each other."""
        with self._lock:
            if len(self._connections) - len(self._strangers) >= MOST_CONNECTIONS:
                connection.close()
                return False
            if len(self._strangers) >= MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _shut(oldest)
            self._connections.add(connection)
            self._strangers[connection] = None
            return True

    def _serve(self, connection: socket.socket) -> None:
        """Answer one client until it disconnects; its errors end only its own connection."""
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(CONNECT_S)
                if self._admits(connection):
                    with self._lock:
                        self._strangers.pop(connection, None)
                    connection.settimeout(None)
                    while (frame := receive_frame(connection)) is not None:
                        self._answer(connection, *frame)
        except OSError:
            pass
        finally:
            with self._lock:
                self._strangers.pop(connection, None)
                self._connections.discard(connection)

    def _admits(self, connection: socket.socket) -> bool:
        # A timeout of the socket restarts with every byte; this one ends the whole greeting.
        late = threading.Timer(CONNECT_S, _shut, (connection,))
        late.daemon = True
        late.start()
        try:
            frame = receive_frame(connection, largest_bytes=0)
        finally:
            late.cancel()
        token = "" if frame is None else str(frame[0].get("token", ""))
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            send_frame(connection, {"error": "wrong token"})
            return False
        where = {"directory": str(self._directory), "marker": self._marker}
        send_frame(connection, where)
        return True

    def _answer(self, connection: socket.socket, head: Head, body: memoryview) -> None:
        answer: Head = {}
        content: bytes | memoryview = b""
        key = str(head.get("key"))
        try:
            match head.get("do"):
                case "put":
                    self._blobs.put(key, body)
                case "get":
                    content = self._blobs.get(key)
                case "delete":
                    self._blobs.delete(key)
                case other:
                    answer = {"error": f"{other!r} is nothing the weight relay does"}
        except KeyError:
            answer = {"missing": True}
        except RollartError as error:
            answer = {"error": str(error)}
        send_frame(connection, answer, content)


class RelayBlobs:
    """Stores every value at a relay; reads from its directory if that is on this machine."""

    def __init__(self, address: str, *, token: str | None = None) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise StorageError(f"{address!r} is not an address of a weight relay: use host:port")
        self._address = (host, int(port))
        self._token = read_token() if token is None else token
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._owed = 0
        """Answers to deletions that are not read yet."""
        self._near: FileBlobs | None = None
        self._marker = Path()
        with self._lock:
            self._connect()

    @property
    def place(self) -> str:
        """A description of the relay and its address, for messages."""
        return f"the weight relay at {self._address[0]}:{self._address[1]}"

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store bytes under a key, replacing the old value."""
        self._ask({"do": "put", "key": key}, data)

    def get(self, key: str) -> bytes | memoryview:
        """Return the bytes under a key; raise KeyError if there are none."""
        if self._near is not None:
            try:
                return self._near.get(key)
            except KeyError:
                if self._marker.exists():
                    raise
            with self._lock:
                self._hang_up()  # if a relay is at the address, it has other files
        head, body = self._ask({"do": "get", "key": key})
        if head.get("missing"):
            raise KeyError(key)
        return body

    def delete(self, key: str) -> None:
        """Remove a key, if it exists; the next request reports an error.

        Not waiting for the answers makes the deletion of a version one round trip, not many.
        """
        with self._lock:
            try:
                send_frame(self._connection or self._connect(), {"do": "delete", "key": key})
                self._owed += 1
                return
            except OSError:
                self._hang_up()
        self._ask({"do": "delete", "key": key})

    def close(self) -> None:
        """Close the connection; stored values stay."""
        with self._lock:
            self._hang_up()

    def _ask(self, head: Head, body: bytes | memoryview = b"") -> tuple[Head, memoryview]:
        """Send a request and return its answer; reconnect once if the connection is broken."""
        with self._lock:
            try:
                answer = self._exchange(head, body)
            except OSError:
                self._hang_up()
                try:
                    answer = self._exchange(head, body)
                except OSError as error:
                    self._hang_up()
                    raise StorageError(f"{self.place} closed the connection: {error}") from error
        if "error" in answer[0]:
            raise StorageError(f"{self.place}: {answer[0]['error']}")
        return answer

    def _exchange(self, head: Head, body: bytes | memoryview) -> tuple[Head, memoryview]:
        connection = self._connection or self._connect()
        send_frame(connection, head, body)
        answers = [_receive_answer(connection) for _ in range(self._owed + 1)]
        self._owed = 0
        return next((each for each in answers if "error" in each[0]), answers[-1])

    def _connect(self) -> socket.socket:
        try:
            connection = socket.create_connection(self._address, timeout=CONNECT_S)
        except OSError as error:
            raise StorageError(
                f"{self.place} does not answer: {error}; start it beside the engines with "
                "`python -m rollart.weights.blobs.relay`"
            ) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send_frame(connection, {"token": self._token})
        answer = receive_frame(connection)
        if answer is None or "error" in answer[0]:
            connection.close()
            raise StorageError(
                f"{self.place} refused the token: set the same {TOKEN_VARIABLE} there"
            )
        connection.settimeout(ANSWER_S)
        self._near = _near_files(answer[0])
        self._marker = Path(str(answer[0].get("directory"))) / _MARKER
        self._connection = connection
        return connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._owed = 0


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _receive_answer(connection: socket.socket) -> tuple[Head, memoryview]:
    answer = receive_frame(connection)
    if answer is None:
        raise RelayError("no answer")
    return answer


def _near_files(head: Head) -> FileBlobs | None:
    """Return the relay's directory if it is on this machine: its marker can be read."""
    directory = Path(str(head.get("directory")))
    try:
        marker = (directory / _MARKER).read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return FileBlobs(directory) if marker == head.get("marker") else None


def main() -> int:
    """Serve until a signal ends the process; then remove its files in shared memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--directory", help="where to keep buckets; default: shared memory")
    arguments = parser.parse_args()
    remove_leftovers()
    directory = arguments.directory or str(shared_directory("relay"))
    ended = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    server = RelayServer(directory, token=read_token(), host=arguments.host, port=arguments.port)
    print(server.address, flush=True)  # noqa: T201 - its parent process reads it
    ended.wait()
    server.close()
    if not arguments.directory:
        remove_directory(Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
