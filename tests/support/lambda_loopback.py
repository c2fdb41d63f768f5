"""AWS Lambda on loopback: Invoke API in front, Runtime API behind, `awslambdaric` between."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Reply = tuple[int, dict[str, str], bytes]


class Loopback(ThreadingHTTPServer):
    """Both APIs in one server."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: queue.Queue[tuple[str, bytes] | None] = queue.Queue()
        self.replies: dict[str, queue.Queue[Reply]] = {}
        self.scripted: list[Reply] = []
        """Replies to give instead of running anything."""
        self.invoked: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def run(self, body: bytes) -> Reply:
        number = str(len(self.invoked))
        self.replies[number] = queue.Queue()
        self.events.put((number, body))
        return self.replies[number].get(timeout=120)


class _Handler(BaseHTTPRequestHandler):
    server: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        event = self.server.events.get()
        if event is None:
            self.close_connection = True
            return
        number, body = event
        headers = {
            "Content-Type": "application/json",
            "Lambda-Runtime-Aws-Request-Id": number,
            "Lambda-Runtime-Trace-Id": "Root=1-0-0",
            "Lambda-Runtime-Deadline-Ms": "9999999999999",
            "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:1:function:score",
        }
        self.reply(200, headers, body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        parts = self.path.split("/")
        if self.path.startswith("/2015-03-31/functions/"):
            self.server.invoked.append(parts[3])
            scripted = self.server.scripted
            self.reply(*(scripted.pop(0) if scripted else self.server.run(body)))
            return
        failed = {"X-Amz-Function-Error": "Unhandled"} if parts[-1] == "error" else {}
        self.reply(202, {}, b'{"status":"OK"}')
        self.server.replies[parts[-2]].put((200, failed, body))

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def loopback() -> Iterator[Loopback]:
    """Serve both APIs."""
    server = Loopback()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.events.put(None)
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def sandbox(server: Loopback, root: Path, handler: str) -> Iterator[None]:
    """Run AWS's runtime on an unpacked package."""
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "import rollart; assert rollart.__file__.startswith(sys.path[0]), rollart.__file__\n"
        "from awslambdaric.__main__ import main; main(sys.argv)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, handler],
        cwd=root,
        env={
            "PATH": os.environ["PATH"],
            "AWS_LAMBDA_RUNTIME_API": server.address,
            "LAMBDA_TASK_ROOT": str(root),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def scripted(body: object, *, status: int = 200, **headers: str) -> Reply:
    """A reply of the Invoke API."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, names, json.dumps(body).encode()
