"""Programs to run in a sandbox, their limits and their results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """What a program in a sandbox may use."""

    wall_s: float = 10.0
    """Seconds after which it is killed, whatever it does."""
    cpu_s: float = 10.0
    """Processor seconds it may use, all its processes together."""
    memory_bytes: int = 512 * 2**20
    """Memory it may hold, all its processes together."""
    processes: int = 32
    """Processes and threads it may have at once."""
    output_bytes: int = 2**20
    """Bytes kept of each of its two outputs; what is beyond is thrown away and said."""
    files_bytes: int = 64 * 2**20
    """Bytes it may write to its private files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Something to run where it can do no harm."""

    argv: tuple[str, ...]
    """The command; it starts in its private directory, which holds `files`."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Relative paths and what is in them."""
    stdin: bytes = b""
    limits: ProgramLimits = field(default_factory=ProgramLimits)


ProgramEnd = Literal["exited", "killed", "wall", "cpu", "memory", "files"]
"""How a program ended: by itself, by a signal, or by the limit it reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """What became of a program."""

    end: ProgramEnd
    exit_code: int
    """Its exit code; 128 + the signal's number if one ended it."""
    stdout: bytes
    stderr: bytes
    is_cut: bool
    """Whether output was thrown away."""
    wall_s: float
    start_s: float
    """Seconds from the call until the program ran: what the sandbox itself cost."""
    cpu_s: float | None = None
    """Processor seconds that all its processes used; None where nobody counts them."""
    waited_s: float | None = None
    """Of one that met its wall limit: the longest a thread of it was ready to run and had no
    processor, which sleeping is not; None where nobody counts that."""
