"""What a reward function prints: captured separately for each call, up to a limit.

While a call runs, what it and its tasks write to `sys.stdout` and `sys.stderr` goes to the call's
own buffer. A context variable names that buffer, so overlapping calls do not mix and the rest of
the process prints as usual. The first call replaces the streams, the last one to end restores
them, both under a lock. A write beyond the limit raises; if the function catches that error, the
check after the call still finds it. Output that bypasses Python's streams is limited by the
invoker instead.
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
    """Counts the bytes one call printed and keeps the last of them."""

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
        """Return True: it can be written to."""
        return True

    def write(self, data: Any, /) -> int:
        """Count the bytes, keep the last of them and raise beyond the limit."""
        view = memoryview(data).cast("B")
        with self.lock:
            self.count_bytes += len(view)
            self._tail = (self._tail + bytes(view[-_SHOWN_BYTES:]))[-_SHOWN_BYTES:]
        if not self.is_ended:
            self.check()
        return len(view)

    def check(self) -> None:
        """Raise a ScoreError if more was printed than allowed."""
        if self.count_bytes > self.limit_bytes:
            raise ScoreError(
                f"it printed more than {self.limit_bytes} bytes: print less", is_final=True
            )

    def tail(self) -> str:
        """Return the end of what was printed."""
        return self._tail.decode(errors="replace").strip()


class _Stream(io.TextIOBase):
    """Replaces a standard stream and sends each write to the call it comes from."""

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
        with output.lock:  # TextIOWrapper is not thread-safe
            return output.text.write(text)

    def flush(self) -> None:
        if self._output() is None:  # captured text is written through and needs no flush
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
    """Capture what is printed inside the `with` block, up to a limit."""
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
    """Replace the standard streams, unless an earlier call has done so."""
    global _open_calls  # noqa: PLW0603
    with _lock:
        _open_calls += 1
        for name in _STREAMS:
            found = getattr(sys, name)
            if not isinstance(found, _Stream):
                setattr(sys, name, _Stream(found))


def _leave() -> None:
    """Restore the standard streams when the last call ends, unless other code replaced them."""
    global _open_calls  # noqa: PLW0603
    with _lock:
        _open_calls -= 1
        for name in _STREAMS:
            found = getattr(sys, name)
            if not _open_calls and isinstance(found, _Stream):
                setattr(sys, name, found.outer)
