"""What goes into a sandbox and what comes out of it, as bytes; the other side is `runner.py`."""

import os
import struct
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from rollart.errors import ConfigError
from rollart.types import Program

MOST_PAYLOAD = 2**20
"""Bytes one frame may hold: a runner sends less; more is a sandbox that lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the runner does for a program beside running it.

    Example:
        >>> Setting(rlimits={"RLIMIT_NOFILE": 1024}, uid=65534)

    """

    rlimits: dict[str, int]
    """Limits of each process, by the name in `resource`."""
    uid: int | None = None
    """The user the program becomes; None: it stays who the runner is."""
    wall_s: float | None = None
    """Seconds after which the runner itself kills it; None: the outside does."""
    single_filter: bytes = b""
    """A second system call filter, which keeps the program one process; empty: none."""
    memory_bytes: int | None = None
    """What that process and its files may hold; the runner checks it. None: a group limits it."""
    has_talk: bool = False
    """Whether the program reads what the host sends while it runs, instead of `stdin`."""


class ByteSource(Protocol):
    """What frames are read from."""

    async def readexactly(self, n: int) -> bytes:
        """Return `n` bytes."""
        ...


def encode(program: Program, setting: Setting) -> bytes:
    """Return the message that makes a runner run a program."""
    check(program)
    fields = [
        str(program.limits.output_bytes),
        "" if setting.uid is None else str(setting.uid),
        "" if setting.wall_s is None else str(setting.wall_s),
        "" if setting.has_talk else str(len(program.stdin)),
        " ".join(f"{name}={value}" for name, value in setting.rlimits.items()),
        str(len(program.files)),
        "" if setting.memory_bytes is None else str(setting.memory_bytes),
        str(len(setting.single_filter)),
    ]
    for path, data in program.files.items():
        fields += [path, str(len(data))]
    header = "\0".join((*fields, *program.argv)).encode("utf-8", "surrogatepass")
    stdin = b"" if setting.has_talk else program.stdin
    rest = (setting.single_filter, stdin, *program.files.values())
    return b"".join((struct.pack(">I", len(header)), header, *rest))


def check(program: Program) -> None:
    """Raise unless the program's command and paths can be used."""
    if not program.argv or not program.argv[0]:
        raise ConfigError("program.argv", program.argv, "must name a command")
    if any("\0" in part for part in program.argv):
        raise ConfigError("program.argv", program.argv, "must not hold a zero byte")
    for path in program.files:
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == os.sep or ".." in parts or "\0" in path:
            fix = "must be a relative path inside the program's directory"
            raise ConfigError("program.files", path, fix)


def decode_words(payload: bytes) -> dict[str, str]:
    """Return the words `name=value` of an outcome."""
    words = payload.decode("ascii", "replace").split()
    return dict(word.split("=", 1) for word in words if "=" in word)


async def read_frame(source: ByteSource) -> tuple[bytes, bytes] | None:
    """Return letter and payload of the next frame, None when the sandbox has fallen silent."""
    try:
        letter, length = struct.unpack(">cI", await source.readexactly(5))
        if length > MOST_PAYLOAD:
            return None
        return letter, await source.readexactly(length)
    except EOFError:
        return None
