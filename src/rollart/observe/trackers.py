"""Trackers: write rows of metrics to `metrics.jsonl` and to TensorBoard files.

Each row has a `step`; the other names of an evaluation's row start with `eval/`. A row is with the
operating system when `add` returns, so a killed run loses none, and on the disk before a checkpoint
of its step (`sync`). On a full disk rows wait; TensorBoard's, which are the same, are left out.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from rollart.atomic_files import FULL, AppendFile, make_directory, write_file
from rollart.errors import StorageError, UserError
from rollart.observe.metrics import Row


class Tracker(Protocol):
    """Stores rows of metrics.

    Example:
        >>> tracker: Tracker = JsonlTracker(Path("runs/lake/metrics.jsonl"))
        >>> tracker.add({"step": 1, "reward_mean": 0.25})
        >>> tracker.close()

    """

    def add(self, row: Mapping[str, float]) -> None:
        """Store one row."""
        ...

    def close(self) -> None:
        """Write buffered data and close."""
        ...


class JsonlTracker:
    """Appends rows to a file, one JSON object per line, and flushes each."""

    def __init__(
        self,
        path: Path,
        *,
        resume_step: int | None = None,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Open the file; a resumed run drops rows of steps it will repeat."""
        try:
            make_directory(path.parent)
            kept: list[Row] = []
            if resume_step is not None and path.exists():
                kept = [row for row in read_rows(path) if row["step"] <= resume_step]
            write_file(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        except OSError as error:
            raise StorageError(f"{path}: metrics cannot be written: {error}") from error
        self._file = AppendFile(path, what="metrics", warn=warn)

    def add(self, row: Mapping[str, float]) -> None:
        """Store one row."""
        self._file.append(json.dumps(dict(row)).encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Have all rows on the disk; may be called from another thread."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardTracker:
    """Writes rows as TensorBoard scalars and flushes each.

    It does not use the library's writer thread: that one prints a traceback when it cannot write,
    and a caller that fills its queue afterwards waits for ever. The library is imported by the
    first tracker, so that rows can be read without it.
    """

    def __init__(self, directory: Path, *, warn: Callable[[str], object] = lambda _: None) -> None:
        self._directory = directory
        self._warn = warn
        self._is_full = False
        writers: Any = import_module("tensorboardX.event_file_writer")
        protocol: Any = import_module("tensorboardX.proto.event_pb2")
        self._event = protocol.Event
        self._summary: Any = import_module("tensorboardX.proto.summary_pb2").Summary
        try:
            directory.mkdir(parents=True, exist_ok=True)
            writer: Any = writers.EventsWriter(str(directory / "events"))
        except OSError as error:
            raise self._refused(error) from error
        self._writer = writer

    def add(self, row: Mapping[str, float]) -> None:
        """Store one row as one record."""
        values: list[Any] = [
            self._summary.Value(tag=name if "/" in name else f"run/{name}", simple_value=value)
            for name, value in row.items()
            if name != "step"
        ]
        event = self._event(
            wall_time=time.time(), step=int(row["step"]), summary=self._summary(value=values)
        )
        try:
            self._writer.write_event(event)
            self._writer.flush()
        except OSError as error:
            if error.errno not in FULL:
                raise self._refused(error) from error
            if not self._is_full:
                self._warn(f"{self._directory}: the disk is full: TensorBoard lacks some steps")
            self._is_full = True

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # `add` has already reported the failed write
            self._writer.close()

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(f"{self._directory}: the TensorBoard file cannot be written: {error}")


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a `metrics.jsonl`; ignore what a power cut left incomplete at its end."""
    rows: list[Row] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; is this a run's directory?") from None
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n") or "\0" in line:
            break
        try:
            rows.append(cast("Row", json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not a row of metrics: {error}") from error
    return rows
