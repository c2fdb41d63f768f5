"""File operations of a program and all it starts, as the kernel saw them (`strace`).

Nothing of the program is trusted: also what native libraries write is recorded. Files are known by
their paths; a file is written by one descriptor at a time, which `Disk` proves for each recording
by comparing what it rebuilds with what is really there.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollart.errors import UserError

CALLS = (
    "open,openat,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,rename,"
    "renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync,syncfs,sync,link,linkat,"
    "symlink,symlinkat,sendfile,copy_file_range,lseek"
)
_LINE = re.compile(rb"^(\d+) +(.*)$", re.DOTALL)
_CALL = re.compile(rb"^(\w+)\((.*)\) += (-?\d+)", re.DOTALL)
_RESUMED = re.compile(rb"^<\.\.\. \w+ resumed>")
_UNFINISHED = b" <unfinished ...>"
_ARGUMENT = re.compile(
    rb'\s*(?:"(?P<text>(?:\\x[0-9a-f]{2})*)"(?:\.\.\.)?'
    rb"|(?:AT_FDCWD|\d+)<(?P<path>[^>]*)>"
    rb"|(?P<other>[^,\"\[{]+|\[[^\]]*\](?: => \[[^\]]*\])?))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A system call that succeeded.

    Example:
        Call(name="write", paths=("/r/log",), texts=(b"{}",), rest="3", result=2, begun=4, ended=5)

    """

    name: str
    paths: tuple[str, ...]
    """The paths of descriptors, in order."""
    texts: tuple[bytes, ...]
    """The strings: names and contents, in order."""
    rest: str
    """The other arguments."""
    result: int
    begun: int
    ended: int
    """The lines of the recording at which it began and ended."""


def record(command: Sequence[str], *, output: Path, env: dict[str, str]) -> None:
    """Run a program and record it."""
    if shutil.which("strace") is None:
        raise UserError("bench durability records runs with strace: apt-get install strace")
    traced = ["strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", str(2**28), "-e"]
    done = subprocess.run(
        [*traced, f"trace={CALLS}", "-e", "signal=none", "-o", str(output), *command],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"the recorded run failed: {(done.stderr or done.stdout)[-2000:]}")


def read_calls(file: Path, *, root: str) -> Iterator[Call]:
    """Yield the calls that concern files below `root`, in the order in which they ended."""
    open_calls: dict[bytes, tuple[int, bytes]] = {}
    wanted = b"".join(b"\\x%02x" % each for each in root.encode())
    with file.open("rb") as lines:
        for number, line in enumerate(lines):
            match = _LINE.match(line.rstrip(b"\n"))
            if match is None:
                continue
            thread, text = match.groups()
            begun = number
            if text.endswith(_UNFINISHED):
                open_calls[thread] = (number, text.removesuffix(_UNFINISHED))
                continue
            if (resumed := _RESUMED.match(text)) is not None:
                begun, start = open_calls.pop(thread)
                text = start + text[resumed.end() :]
            if wanted not in text and not text.startswith((b"sync(", b"fsync(")):
                continue
            call = _CALL.match(text)
            if call is None or int(call[3]) < 0:
                continue
            yield _parse(call, begun=begun, ended=number)


def _parse(call: re.Match[bytes], *, begun: int, ended: int) -> Call:
    paths: list[str] = []
    texts: list[bytes] = []
    rest: list[str] = []
    for argument in _ARGUMENT.finditer(call[2]):
        if argument["text"] is not None:
            texts.append(_plain(argument["text"]))
        elif argument["path"] is not None:
            paths.append(_plain(argument["path"]).decode(errors="surrogateescape"))
        else:
            rest.append(argument["other"].decode().strip())
    return Call(
        name=call[1].decode(),
        paths=tuple(paths),
        texts=tuple(texts),
        rest=" ".join(each for each in rest if each),
        result=int(call[3]),
        begun=begun,
        ended=ended,
    )


def _plain(text: bytes) -> bytes:
    return bytes.fromhex(text.replace(b"\\x", b"").decode()) if text.startswith(b"\\x") else text
