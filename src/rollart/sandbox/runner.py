"""The runner: process 1 inside a sandbox. It runs one program and reports how it ended.

It needs nothing of this project and runs on any Python 3.9 or later; it imports little, because
imports are most of the start time. It reads one message (`messages.encode`) from standard input
and forks a child that runs the program in a private directory: Python in the forked interpreter,
anything else by exec. It relays both outputs up to their limit and drops the rest, so a program
never blocks on a full pipe and the host never reads more. As process 1 it cannot be killed from
inside; when it exits the kernel kills all other processes. Limits are enforced from outside.

Frames on standard output are a letter, four bytes of length and a payload. `r`: ready; `s`: the
program starts; `o`, `e`: its outputs; `c`: output was cut; `x`: how it ended, as `name=value`
words. With `--line` everything comes as one line of text at the end.
"""

import _thread
import binascii
import os
import resource
import select
import site
import sys
import time

WORK = "/tmp/work"  # noqa: S108
CHUNK = 65536
MOST_LEFT = 2**20
"""Most bytes read from a pipe after the program has ended."""
INTERPRETERS = ("python", "python3")
KILL = 9
LOOK_S = 0.004
"""How often the memory of a program without a control group is read."""
NICER = 4
FILE_BYTES = 1024
"""What the kernel holds for a file besides its content."""


class Frames:
    """Reports what happens, as frames or as one line of text at the end."""

    def __init__(self, fd: int, *, as_line: bool) -> None:
        self._fd = fd
        self._as_line = as_line
        self._kept: dict[bytes, list[bytes]] = {b"o": [], b"e": []}

    def send(self, letter: bytes, payload: bytes = b"") -> None:
        """Send one frame."""
        if not self._as_line:
            write_all(self._fd, letter + len(payload).to_bytes(4, "big") + payload)
        elif letter in self._kept:
            self._kept[letter].append(payload)

    def finish(self, outcome: dict[str, object]) -> None:
        """Report how the program ended."""
        if self._as_line:
            for name, letter in (("stdout", b"o"), ("stderr", b"e")):
                data = b"".join(self._kept[letter])
                outcome[name] = binascii.b2a_base64(data, newline=False).decode()
        words = " ".join(f"{name}={value}" for name, value in outcome.items()).encode()
        if self._as_line:
            write_all(self._fd, words + b"\n")
        else:
            self.send(b"x", words)


class Relay:
    """Reads one output of the program and forwards it up to its limit."""

    def __init__(self, letter: bytes, limit: int, frames: Frames) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.fchmod(self.write_fd, 0o666)
        os.set_blocking(self.read_fd, False)
        self.is_open = True
        self.is_cut = False
        self._letter = letter
        self._left = limit
        self._frames = frames

    def pump(self) -> int:
        """Forward the bytes available now and return how many were read."""
        try:
            data = os.read(self.read_fd, CHUNK)
        except BlockingIOError:
            return 0
        self.is_open = bool(data)
        kept = data[: self._left]
        if kept:
            self._frames.send(self._letter, kept)
        self._left -= len(kept)
        if len(kept) < len(data) and not self.is_cut:
            self.is_cut = True
            self._frames.send(b"c")
        return len(data)

    def drain(self) -> None:
        """Forward what is left in the pipe after the program has ended."""
        total = 0
        while self.is_open and total < MOST_LEFT:
            count = self.pump()
            if count == 0:
                return
            total += count


class RunnerMessage:
    """The program as received: fields separated by zero bytes, then its input and files."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        length = int.from_bytes(self._read(4), "big")
        fields = os.fsdecode(self._read(length)).split("\0")
        output, uid, wall, stdin, limits, files, memory, filter_size = fields[:8]
        self.output_bytes = int(output)
        self.uid = int(uid) if uid else None
        self.wall_s = float(wall) if wall else None
        pairs = [pair.split("=") for pair in limits.split()]
        self.rlimits = {name: int(value) for name, value in pairs}
        named = fields[8 : 8 + 2 * int(files)]
        self.argv = fields[8 + 2 * int(files) :]
        self.memory_bytes = int(memory) if memory else None
        self.single_filter = self._read(int(filter_size))
        if stdin:
            self.stdin = os.memfd_create("stdin")
            write_all(self.stdin, self._read(int(stdin)))
            os.lseek(self.stdin, 0, os.SEEK_SET)
        else:
            # The program reads what the host sends after this message.
            self.stdin = os.dup(fd)
        sizes = [int(size) for size in named[1::2]]
        self.files = [(path, self._read(size)) for path, size in zip(named[::2], sizes)]  # noqa: B905

    def _read(self, length: int) -> bytes:
        """Read `length` bytes; exit if the host has closed the pipe."""
        parts: list[bytes] = []
        while length:
            data = os.read(self._fd, min(length, 2**20))
            if not data:
                os._exit(0)
            parts.append(data)
            length -= len(data)
        return b"".join(parts)


def main() -> None:
    """Read one program, run it in a child process and report how it ended."""
    as_line = sys.argv[1:2] == ["--line"]
    frames = Frames(os.dup(1), as_line=as_line)
    source = os.dup(0)
    # Python was started without `site` (-S) to save time; programs still expect `exit` and `help`.
    site.setquit()
    site.sethelper()
    for module in sys.argv[1 + as_line :]:
        __import__(module)
    frames.send(b"r")
    message = RunnerMessage(source)
    out = Relay(b"o", message.output_bytes, frames)
    err = Relay(b"e", message.output_bytes, frames)
    if message.single_filter:
        set_dumpable(False)
    frames.send(b"s")
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        for fd, end in enumerate((message.stdin, out.write_fd, err.write_fd)):
            os.dup2(end, fd)
        os.closerange(3, 64)
        become(message)
        return
    for fd in (out.write_fd, err.write_fd, message.stdin):
        os.close(fd)
    outcome = watch(child, (out, err), message, -1 if as_line else source)
    out.drain()
    err.drain()
    outcome["is_cut"] = int(out.is_cut or err.is_cut)
    outcome["wall_s"] = time.monotonic() - started
    frames.finish(outcome)
    os._exit(0)


def watch(
    child: int, relays: "tuple[Relay, Relay]", message: RunnerMessage, outside: int
) -> dict[str, object]:
    """Relay outputs until the program ends or its time is up; return how it ended.

    `outside` is the pipe from the host: when the host closes it, this process exits.
    """
    wall_s, memory_bytes = message.wall_s, message.memory_bytes
    deadline = None if wall_s is None else time.monotonic() + wall_s
    end_read, end_write = os.pipe()
    _thread.start_new_thread(reap, (child, end_write))
    poll = select.poll()
    poll.register(end_read, select.POLLIN)
    if outside >= 0:
        poll.register(outside, select.POLLHUP)
    by_fd = {relay.read_fd: relay for relay in relays}
    for fd in by_fd:
        poll.register(fd, select.POLLIN | select.POLLHUP)
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            kill(child)
            return {"wall": 1}
        if memory_bytes is not None:
            if held_bytes(child) > memory_bytes:
                kill(child)
                return {"memory": 1}
            left = LOOK_S if left is None else min(left, LOOK_S)
        for fd, _ in poll.poll(None if left is None else left * 1000 + 1):
            if fd == outside:
                os._exit(0)
            if fd == end_read:
                return describe(int.from_bytes(os.read(end_read, 4), "big"))
            by_fd[fd].pump()
            if not by_fd[fd].is_open:
                poll.unregister(fd)


def kill(child: int) -> None:
    """Kill the program; of another user's, the end of this process does it."""
    try:  # noqa: SIM105 - contextlib is slow to import
        os.kill(child, KILL)
    except PermissionError:
        pass


def held_bytes(child: int) -> int:
    """Return what a process, its page tables and the files of the sandbox hold."""
    room = os.statvfs("/tmp")  # noqa: S108
    held = (room.f_blocks - room.f_bfree) * room.f_frsize
    held += (room.f_files - room.f_ffree) * FILE_BYTES
    try:
        with open(f"/proc/{child}/status", "rb") as file:  # noqa: PTH123
            for line in file:
                if line.startswith((b"VmRSS:", b"VmPTE:", b"VmSwap:")):
                    held += int(line.split()[1]) * 1024
    except OSError:
        pass
    return held


def set_dumpable(is_dumpable: bool) -> None:
    """Let other processes of the same user read this one's memory, or not."""
    import ctypes  # noqa: PLC0415 - slow to import, and only needed without control groups

    ctypes.CDLL(None).prctl(4, int(is_dumpable), 0, 0, 0)


def add_filter(steps: bytes) -> None:
    """Add a system call filter to this process; raise if the kernel refuses it."""
    import ctypes  # noqa: PLC0415

    kept = ctypes.create_string_buffer(steps, len(steps))
    head = (len(steps) // 8).to_bytes(8, sys.byteorder)
    head += ctypes.addressof(kept).to_bytes(8, sys.byteorder)
    if ctypes.CDLL(None).prctl(22, 2, head, 0, 0) != 0:
        raise OSError("the kernel refused the filter")


def reap(child: int, end: int) -> None:
    """Wait for child processes, including orphans; write the program's status to `end`."""
    while True:
        pid, status = os.wait()
        if pid == child:
            os.write(end, status.to_bytes(4, "big"))
            return


def describe(status: int) -> dict[str, object]:
    """Return how the program ended and whether /tmp was full."""
    room = os.statvfs("/tmp")  # noqa: S108
    is_full = room.f_bavail == 0 or (room.f_files > 0 and room.f_ffree == 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status), "is_full": int(is_full)}
    return {"code": os.WEXITSTATUS(status), "is_full": int(is_full)}


def become(message: RunnerMessage) -> None:
    """Set limits, drop privileges, write the program's files and run it."""
    os.setsid()
    for name, value in message.rlimits.items():
        # At the hard limit the kernel sends SIGKILL; the soft one sends SIGXCPU, which names why.
        hard = value + 1 if name == "RLIMIT_CPU" else value
        resource.setrlimit(getattr(resource, name), (value, hard))
    if message.uid is not None:
        os.setgroups([])
        os.setresgid(message.uid, message.uid, message.uid)
        os.setresuid(message.uid, message.uid, message.uid)
    if message.single_filter:
        set_dumpable(True)
        # Below this runner, which must notice in time what the program takes.
        os.nice(NICER)
        add_filter(message.single_filter)
    os.umask(0o022)
    try:
        os.makedirs(WORK, mode=0o700, exist_ok=True)  # noqa: PTH103
        os.chdir(WORK)
        os.environ["PWD"] = WORK
        for path, data in message.files:
            if "/" in path:
                os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            with open(path, "wb") as file:  # noqa: PTH123
                file.write(data)
        start(message.argv)
    except OSError as error:
        sys.stderr.write(f"{message.argv[0]}: {error}\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def start(argv: list[str]) -> None:
    """Run a Python program in this process; exec any other."""
    if argv[0] in INTERPRETERS and len(argv) > 1:
        if argv[1] == "-c" and len(argv) > 2:
            source = argv[2].encode("utf-8", "surrogateescape")
            interpret(source, "<string>", ["-c", *argv[3:]], "")
            return
        if not argv[1].startswith("-"):
            with open(argv[1], "rb") as file:  # noqa: PTH123
                source = file.read()
            path = os.path.abspath(argv[1])  # noqa: PTH100
            interpret(source, path, argv[1:], os.path.dirname(path))  # noqa: PTH120
            return
    import signal  # noqa: PLC0415 - slow to import, and only a new program wants it

    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(argv[0], argv)  # noqa: S606


def interpret(source: bytes, name: str, argv: list[str], folder: str) -> None:
    """Run Python source as `__main__`; an exception ends this process as in plain Python."""
    module = type(sys)("__main__")
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
        # The first frame is this function; a program's traceback must not show it.
        trace = error.__traceback__
        own = error.with_traceback(trace.tb_next if trace else None)
        sys.excepthook(type(own), own, own.__traceback__)
        sys.exit(1)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`; one `os.write` may write only a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()
