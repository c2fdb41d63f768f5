"""What goes into a sandbox and what comes out of it, as bytes; the other side is `runner.py`."""

import json
import struct
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

from rollart.errors import ConfigError
from rollart.types import Program

MOST_PAYLOAD = 2**20
"""Bytes one frame may hold: a runner sends less; more is a sandbox that lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the runner does for a program beside running it."""

    rlimits: dict[str, int]
    """Limits of each process, by the name in `resource`."""
    uid: int | None = None
    """The user the program becomes; None: it stays who the runner is."""
    wall_s: float | None = None
    """Seconds after which the runner itself kills it; None: the outside does."""
    as_line: bool = False
    """Whether the outcome is one line of JSON, for channels that carry only text."""


class ByteSource(Protocol):
    """What frames are read from."""

    async def readexactly(self, n: int) -> bytes:
        """Return `n` bytes."""
        ...


def encode(program: Program, setting: Setting) -> bytes:
    """Return the message that makes a runner run a program."""
    check(program)
    header: dict[str, Any] = {
        "argv": program.argv,
        "files": [(path, len(data)) for path, data in program.files.items()],
        "stdin": len(program.stdin),
        "output_bytes": program.limits.output_bytes,
        "rlimits": setting.rlimits,
        "uid": setting.uid,
        "wall_s": setting.wall_s,
        "as_line": setting.as_line,
    }
    text = json.dumps(header).encode()
    return b"".join((struct.pack(">I", len(text)), text, program.stdin, *program.files.values()))


def check(program: Program) -> None:
    """Raise unless the program's command and paths can be used."""
    if not program.argv or not program.argv[0]:
        raise ConfigError("program.argv", program.argv, "must name a command")
    if any("\0" in part for part in program.argv):
        raise ConfigError("program.argv", program.argv, "must not hold a zero byte")
    for path in program.files:
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts or "\0" in path:
            fix = "must be a relative path inside the program's directory"
            raise ConfigError("program.files", path, fix)


async def read_frame(source: ByteSource) -> tuple[bytes, bytes] | None:
    """Return letter and payload of the next frame, None when the sandbox has fallen silent."""
    try:
        letter, length = struct.unpack(">cI", await source.readexactly(5))
        if length > MOST_PAYLOAD:
            return None
        return letter, await source.readexactly(length)
    except EOFError:
        return None
