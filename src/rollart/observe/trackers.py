"""Trackers: write rows of metrics to `metrics.jsonl` and to TensorBoard files.

Each row has a `step`; the other names of an evaluation's row start with `eval/`. A row is on disk
when `add` returns, so a killed run loses none.
"""

import contextlib
import json
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from rollart.atomic_files import write_file
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

    def __init__(self, path: Path, *, resume_step: int | None = None) -> None:
        """Open the file; a resumed run drops rows of steps it will repeat."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept: list[Row] = []
            if resume_step is not None and path.exists():
                kept = [row for row in read_rows(path) if row["step"] <= resume_step]
            write_file(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{path}: metrics cannot be written: {error}") from error

    def add(self, row: Mapping[str, float]) -> None:
        """Store one row."""
        try:
            self._file.write(json.dumps(dict(row)) + "\n")
            self._file.flush()
        except OSError as error:
            name = self._file.name
            raise StorageError(f"{name}: metrics cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # `add` has already reported the failed write
            self._file.close()


class TensorBoardTracker:
    """Writes rows as TensorBoard scalars and flushes each.

    It does not use the library's writer thread: that one prints a traceback when it cannot write,
    and a caller that fills its queue afterwards waits for ever. The library is imported by the
    first tracker, so that rows can be read without it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
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
            raise self._refused(error) from error

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # `add` has already reported the failed write
            self._writer.close()

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(f"{self._directory}: the TensorBoard file cannot be written: {error}")


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a `metrics.jsonl`; ignore an incomplete last line."""
    rows: list[Row] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; is this a run's directory?") from None
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            break
        try:
            rows.append(cast("Row", json.loads(line)))
        except ValueError as error:
            raise UserError(f"{path}:{number}: not a row of metrics: {error}") from error
    return rows
