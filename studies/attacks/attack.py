"""Programs that try to escape: what a sandbox is tested with, here and on any other machine.

Each is Python source that tries one thing and prints `ESCAPED` if it can tell that it worked. It
also prints what it read; the host checks whether its secret is in there, and whatever only the host
can see: a connection, a new file, a process that still runs. A target says what there is to attack.
It holds no secret itself, so a secret in the output proves that it was read.
"""

from dataclasses import dataclass, field

from rollart.types import Program, ProgramLimits

MARK = b"ESCAPED"
ROOM = ProgramLimits(
    wall_s=20.0,
    cpu_s=10.0,
    memory_bytes=96 * 2**20,
    processes=16,
    output_bytes=2**16,
    files_bytes=4 * 2**20,
)
"""Limits for attacks that try something and end."""
TIGHT = ProgramLimits(
    wall_s=0.6,
    cpu_s=0.5,
    memory_bytes=48 * 2**20,
    processes=16,
    output_bytes=2**16,
    files_bytes=4 * 2**20,
)
"""Limits for attacks that use up resources until they are stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What there is to attack on the host.

    Example:
        Target(secret_file="/tmp/x/secret.txt", variable="ROLLART_TRAP_TOKEN", port=40123,
               abstract="rollart-trap-1f", unix_path="/tmp/x/socket", pid=4711, folder="/tmp/x")

    """

    secret_file: str
    """A file of the host that holds the secret."""
    variable: str
    """A variable of the host's environment that holds the secret."""
    port: int
    """A loopback port on which the host listens."""
    abstract: str
    """An abstract Unix socket on which the host listens."""
    unix_path: str
    """A Unix socket in the file system on which the host listens."""
    pid: int
    """A process of the host."""
    folder: str
    """A directory of the host that anyone may write to."""

    def preamble(self) -> str:
        """Return Python code that defines these for an attack."""
        return PREAMBLE.format(target=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attempt to escape.

    Example:
        Attack(name="read_the_file", kind="files", source="show(SECRET_FILE)")

    """

    name: str
    kind: str
    source: str
    limits: ProgramLimits = field(default=ROOM)

    def program(self, target: Target, way: str = "direct") -> Program:
        """Return the program of this attack, started in one of `WAYS`."""
        code = target.preamble() + self.source
        argv, main = WAYS[way]
        files = {"attack.py": code.encode(), "main.py": main.encode()}
        return Program(argv=argv, files=files, stdin=b"", limits=self.limits)


WAYS: dict[str, tuple[tuple[str, ...], str]] = {
    "direct": (("python3", "attack.py"), ""),
    "shell": (("sh", "-c", "exec python3 attack.py"), ""),
    "fork": (
        ("python3", "main.py"),
        "import os, sys\nif os.fork() == 0:\n    import runpy; runpy.run_path('attack.py')\n"
        "else:\n    os.wait()\n",
    ),
    "thread": (
        ("python3", "main.py"),
        "import threading, runpy\n"
        "t = threading.Thread(target=runpy.run_path, args=('attack.py',)); t.start(); t.join()\n",
    ),
    "session": (
        ("python3", "main.py"),
        "import subprocess, sys\n"
        "subprocess.run(['python3', 'attack.py'], start_new_session=True)\n",
    ),
}
"""How an attack is started: the command and the content of `main.py`."""

PREAMBLE = """
import os, sys, socket, signal, ctypes, subprocess, time, glob, threading, mmap, stat, errno
SECRET_FILE = {target.secret_file!r}
VARIABLE = {target.variable!r}
PORT = {target.port}
ABSTRACT = {target.abstract!r}
UNIX_PATH = {target.unix_path!r}
HOST_PID = {target.pid}
FOLDER = {target.folder!r}
libc = ctypes.CDLL(None, use_errno=True)
def escaped(what):
    print("ESCAPED", what, flush=True)
def show(path):
    with open(path, "rb") as file:
        sys.stdout.buffer.write(file.read(20000)); sys.stdout.flush()
def attempt(what, call, *args):
    try:
        call(*args)
    except (OSError, ValueError, PermissionError) as error:
        print(what, "failed:", error, flush=True)
        return False
    return True
"""


def quick(kind: str, **sources: str) -> tuple[Attack, ...]:
    """Return attacks that try something and end."""
    return tuple(Attack(name=name, kind=kind, source=text) for name, text in sources.items())


def greedy(kind: str, **sources: str) -> tuple[Attack, ...]:
    """Return attacks that run until they are stopped."""
    return tuple(
        Attack(name=name, kind=kind, source=text, limits=TIGHT) for name, text in sources.items()
    )
