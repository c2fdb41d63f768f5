"""What a reward function prints: kept apart per call, and bounded.

While a call is captured, what it and the tasks it starts write to `sys.stdout` and `sys.stderr`
goes to a buffer of its own, told apart by a context variable, so calls that overlap do not mix and
the rest of the process prints as ever. The streams are exchanged under a lock by the first call
that finds them as they were, and given back by the last to end; a call's own threads write under
its lock. Beyond the limit a write raises; a function that catches that is found out afterwards.
What bypasses Python's streams is the invoker's to bound.
"""

import io
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO, cast

from rollart.errors import ScoreError

LIMIT_BYTES = 2**20
"""Most bytes one call may print."""
_SHOWN_BYTES = 400


class Output(io.RawIOBase):
    """The bytes one call printed: counted, and the last of them kept."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.count_bytes = 0
        self.is_ended = False
        self.lock = threading.RLock()
        self._tail = b""
        self.text = io.TextIOWrapper(
            cast("Any", self), encoding="utf-8", errors="backslashreplace", write_through=True
        )

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def write(self, data: Any, /) -> int:
        """Count what is written, keep its end, refuse what is too much."""
        view = memoryview(data).cast("B")
        with self.lock:
            self.count_bytes += len(view)
            self._tail = (self._tail + bytes(view[-_SHOWN_BYTES:]))[-_SHOWN_BYTES:]
        if not self.is_ended:
            self.check()
        return len(view)

    def check(self) -> None:
        """Raise if more was printed than allowed."""
        if self.count_bytes > self.limit_bytes:
            raise ScoreError(
                f"it printed more than {self.limit_bytes} bytes: print less", is_final=True
            )

    def tail(self) -> str:
        """Return the end of what was printed."""
        return self._tail.decode(errors="replace").strip()


class _Stream(io.TextIOBase):
    """Stands for a standard stream: hands each write to the call it comes from."""

    def __init__(self, outer: TextIO) -> None:
        self.outer = outer

    def _output(self) -> Output | None:
        output = _current.get()
        return None if output is None or output.is_ended else output

    def _target(self) -> Any:
        output = self._output()
        return self.outer if output is None else output.text

    def write(self, text: str, /) -> int:
        output = self._output()
        if output is None:
            return self.outer.write(text)
        with output.lock:  # a text layer takes one writer at a time
            return output.text.write(text)

    def flush(self) -> None:
        if self._output() is None:  # what is captured is written through
            self.outer.flush()

    def fileno(self) -> int:
        return self.outer.fileno()

    @property
    def buffer(self) -> Any:
        return self._target().buffer

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._target().encoding


_current: ContextVar[Output | None] = ContextVar("rollart_reward_output", default=None)
_STREAMS = ("stdout", "stderr")
_open_calls = 0
_lock = threading.Lock()


@contextmanager
def captured(*, limit_bytes: int = LIMIT_BYTES) -> Generator[Output]:
    """Capture what is printed within, up to a limit."""
    output = Output(limit_bytes)
    _enter()
    token = _current.set(output)
    try:
        yield output
    finally:
        output.is_ended = True
        _current.reset(token)
        _leave()


def _enter() -> None:
    """Take the standard streams, unless they are taken already."""
    global _open_calls  # noqa: PLW0603
    with _lock:
        _open_calls += 1
        for name in _STREAMS:
            found = getattr(sys, name)
            if not isinstance(found, _Stream):
                setattr(sys, name, _Stream(found))


def _leave() -> None:
    """Give the standard streams back when the last call has ended, unless someone took them."""
    global _open_calls  # noqa: PLW0603
    with _lock:
        _open_calls -= 1
        for name in _STREAMS:
            found = getattr(sys, name)
            if not _open_calls and isinstance(found, _Stream):
                setattr(sys, name, found.outer)
