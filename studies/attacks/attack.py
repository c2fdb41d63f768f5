"""Programs that try to get out: what a sandbox is tested with, here and on any other machine.

Each is Python source that tries one thing and prints `ESCAPED` where it can tell that it worked;
what it read it prints too, and whether the host's secret is in it is judged outside, as is what
only the host can see: a connection that arrived, a file that appeared, a process that was left.
A target says what there is to reach. It holds no secret itself, so finding one in an output means
that it was read.
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
"""For attacks that try something and end."""
TIGHT = ProgramLimits(
    wall_s=0.6,
    cpu_s=0.5,
    memory_bytes=48 * 2**20,
    processes=16,
    output_bytes=2**16,
    files_bytes=4 * 2**20,
)
"""For attacks that use up what they can until they are stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What of the host there is to reach."""

    secret_file: str
    """A file of the host that holds the secret."""
    variable: str
    """A variable of the host's environment that holds it too."""
    port: int
    """A port of the host's loopback somebody listens at."""
    abstract: str
    """An abstract Unix socket somebody listens at."""
    unix_path: str
    """A Unix socket in the host's file system somebody listens at."""
    pid: int
    """A process of the host."""
    folder: str
    """A directory of the host anybody may write to."""

    def preamble(self) -> str:
        """Return the Python that names these for an attack."""
        return PREAMBLE.format(target=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One way to try."""

    name: str
    kind: str
    source: str
    limits: ProgramLimits = field(default=ROOM)

    def program(self, target: Target, way: str = "direct") -> Program:
        """Return the program that makes this attack, started in one of `WAYS`."""
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
"""How an attack is started: command and what is in `main.py`."""

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
    """Return attacks that go on until they are stopped."""
    return tuple(
        Attack(name=name, kind=kind, source=text, limits=TIGHT) for name, text in sources.items()
    )
