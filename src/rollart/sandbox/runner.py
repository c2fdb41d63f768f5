"""The first process inside a sandbox: waits for one program, runs it, tells how it ended.

Runs by itself, without the project: the standard library alone, whatever Python 3.9 or later is
inside. It reads one message from its standard input (`messages.encode`), makes a child that runs
the program in a private directory, relays its two outputs up to their limit and throws away the
rest, so that a program is never blocked and the host never reads more. A program that is plain
Python is run in the child itself, whose interpreter is there already; any other is executed.

As process 1 it cannot be killed from inside, and when it exits the kernel kills all that is left.
Its parent, outside, trusts none of what it says about limits: those are held from outside.

Frames on standard output: a letter, four bytes of length, a payload. `r`: ready; `s`: the program
starts; `o`, `e`: its outputs; `x`: how it ended, as JSON.
"""

import base64
import json
import os
import resource
import select
import signal
import struct
import sys
import time
import types
from typing import Any, NoReturn

WORK = "/tmp/work"  # noqa: S108
CHUNK = 65536
MOST_LEFT = 2**20
"""Bytes a pipe may still hold when the program has ended."""
INTERPRETERS = ("python", "python3")
POLL_OUT = select.POLLIN | select.POLLHUP


class Relay:
    """Reads one output of the program and passes on no more than its limit."""

    def __init__(self, letter: bytes, limit: int, frames: "Frames") -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.fchmod(self.write_fd, 0o666)
        os.set_blocking(self.read_fd, False)
        self.is_open = True
        self.cut = 0
        self._letter = letter
        self._left = limit
        self._frames = frames

    def pump(self) -> int:
        """Pass on what is there; return how many bytes were."""
        try:
            data = os.read(self.read_fd, CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self.is_open = False
        kept = data[: self._left]
        if kept:
            self._frames.send(self._letter, kept)
        self._left -= len(kept)
        self.cut += len(data) - len(kept)
        return len(data)

    def drain(self) -> None:
        """Pass on what the ended program left in the pipe."""
        total = 0
        while self.is_open and total < MOST_LEFT:
            count = self.pump()
            if count == 0:
                return
            total += count


class Frames:
    """Tells the outside what happens, as frames or, at the end, as one line of JSON."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.as_line = False
        self._kept: dict[bytes, list[bytes]] = {b"o": [], b"e": []}

    def send(self, letter: bytes, payload: bytes = b"") -> None:
        """Send one frame."""
        if self.as_line:
            if letter in self._kept:
                self._kept[letter].append(payload)
            return
        self._write(letter + struct.pack(">I", len(payload)) + payload)

    def finish(self, outcome: dict[str, Any]) -> None:
        """Tell how the program ended."""
        if self.as_line:
            for name, letter in (("stdout", b"o"), ("stderr", b"e")):
                outcome[name] = base64.b64encode(b"".join(self._kept[letter])).decode()
            self._write(json.dumps(outcome).encode() + b"\n")
        else:
            self.send(b"x", json.dumps(outcome).encode())

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]


def main() -> None:
    """Run the one program this process is for; in its child, become it."""
    frames = Frames(os.dup(1))
    source = os.dup(0)
    for module in sys.argv[1:]:
        __import__(module)
    frames.send(b"r")
    message, stdin, files = receive(source)
    frames.as_line = bool(message["as_line"])
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    out = Relay(b"o", message["output_bytes"], frames)
    err = Relay(b"e", message["output_bytes"], frames)
    frames.send(b"s")
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd, end in enumerate((stdin, out.write_fd, err.write_fd)):
            os.dup2(end, fd)
        os.closerange(3, 64)
        become(message, files)
        return
    for fd in (out.write_fd, err.write_fd, stdin):
        os.close(fd)
    del files
    outcome = watch(child, (out, err), wake_read, message["wall_s"])
    out.drain()
    err.drain()
    outcome["is_cut"] = out.cut + err.cut > 0
    outcome["wall_s"] = time.monotonic() - started
    frames.finish(outcome)
    os._exit(0)


def receive(fd: int) -> tuple[dict[str, Any], int, list[tuple[str, bytes]]]:
    """Read the message: what to run, its standard input as a descriptor, its files."""
    (length,) = struct.unpack(">I", read_exactly(fd, 4))
    message = json.loads(read_exactly(fd, length))
    stdin = os.memfd_create("stdin")
    view = memoryview(read_exactly(fd, message["stdin"]))
    while view:
        view = view[os.write(stdin, view) :]
    os.lseek(stdin, 0, os.SEEK_SET)
    return message, stdin, [(path, read_exactly(fd, size)) for path, size in message["files"]]


def read_exactly(fd: int, length: int) -> bytes:
    """Read `length` bytes; end this process if the outside has gone."""
    parts: list[bytes] = []
    while length:
        data = os.read(fd, min(length, 2**20))
        if not data:
            os._exit(0)
        parts.append(data)
        length -= len(data)
    return b"".join(parts)


def watch(
    child: int, relays: tuple[Relay, Relay], wake: int, wall_s: "float | None"
) -> dict[str, Any]:
    """Relay outputs and reap orphans until the program ends; return how it did."""
    deadline = None if wall_s is None else time.monotonic() + wall_s
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    by_fd = {relay.read_fd: relay for relay in relays}
    for fd in by_fd:
        poll.register(fd, POLL_OUT)
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if left == 0.0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"wall": True, "signal": int(signal.SIGKILL), "is_full": False}
        for fd, _ in poll.poll(None if left is None else left * 1000 + 1):
            if fd == wake:
                os.read(wake, 4096)
            elif by_fd[fd].pump() == 0 and not by_fd[fd].is_open:
                poll.unregister(fd)
        status = reap(child)
        if status is not None:
            return describe(status)


def reap(child: int) -> "int | None":
    """Collect ended processes; return the program's status if it is among them."""
    status = None
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            status = code


def describe(status: int) -> dict[str, Any]:
    """Say how the program ended and whether its files had used up their room."""
    room = os.statvfs("/tmp")  # noqa: S108
    is_full = room.f_bavail == 0 or (room.f_files > 0 and room.f_ffree == 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status), "is_full": is_full}
    return {"code": os.WEXITSTATUS(status), "is_full": is_full}


def become(message: dict[str, Any], files: list[tuple[str, bytes]]) -> None:
    """Give up what the program must not have, write its files and run it."""
    os.setsid()
    for name, value in message["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if message["uid"] is not None:
        os.setgroups([])
        os.setresgid(message["uid"], message["uid"], message["uid"])
        os.setresuid(message["uid"], message["uid"], message["uid"])
    os.umask(0o022)
    try:
        os.makedirs(WORK, mode=0o700, exist_ok=True)  # noqa: PTH103
        os.chdir(WORK)
        os.environ["PWD"] = WORK
        for path, data in files:
            if "/" in path:
                os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            with open(path, "wb") as file:  # noqa: PTH123
                file.write(data)
        start(message["argv"])
    except OSError as error:
        sys.stderr.write(f"{message['argv'][0]}: {error}\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def start(argv: list[str]) -> None:
    """Run a Python program in this process, execute any other."""
    if argv[0] in INTERPRETERS and len(argv) > 1:
        if argv[1] == "-c" and len(argv) > 2:
            interpret(argv[2].encode("utf-8", "surrogatepass"), "<string>", ["-c", *argv[3:]], "")
            return
        if not argv[1].startswith("-"):
            with open(argv[1], "rb") as file:  # noqa: PTH123
                source = file.read()
            path = os.path.abspath(argv[1])  # noqa: PTH100
            interpret(source, path, argv[1:], os.path.dirname(path))  # noqa: PTH120
            return
    execute(argv)


def execute(argv: list[str]) -> NoReturn:
    """Replace this process by the program, with the signals a new program expects."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(argv[0], argv)  # noqa: S606


def interpret(source: bytes, name: str, argv: list[str], folder: str) -> None:
    """Run Python source as `__main__`; what it raises ends this process as Python would."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    if folder:
        module.__dict__["__file__"] = name
    sys.modules["__main__"] = module
    sys.argv[:] = argv
    sys.path[0] = folder
    try:
        exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        own = error.with_traceback(trace.tb_next if trace else None)
        sys.excepthook(type(own), own, own.__traceback__)
        sys.exit(1)


if __name__ == "__main__":
    main()
