"""The recorder: the one place a driver reports to; everything in a run's directory follows.

`record` is called once per event, in the order of events, by the driver alone. Until `open`, no
file of the directory is touched: a run that cannot go on stays as it is.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from rollart.atomic_files import write_summary
from rollart.errors import InvariantError, StorageError, UserError
from rollart.events import Command, Event, TrajectoryFailed, TrajectoryFinished
from rollart.observe.log import EventLog, LogHeader
from rollart.observe.metrics import Metrics, Row, TaskName
from rollart.observe.plots import plot_learning_curve
from rollart.observe.progress import Progress
from rollart.observe.run_directory import LOG, METRICS, SUMMARY
from rollart.observe.samples import write_samples
from rollart.observe.trackers import JsonlTracker, TensorBoardTracker, Tracker, read_rows
from rollart.types import Failure, Json, Trajectory

CURVE = "learning_curve.png"
_IDLE_STEPS = 10
"""Steps in a row without a signal that are told of: a few are usual when most attempts succeed."""
_SOLVED = 0.8
"""Mean success of those steps from which it is no cause for worry."""
_TOLD_EVERY = 16
"""Failures in a row from one word of them to the next."""


class Recorder:
    """Writes a run's directory and shows its progress."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        steps: int,
        task_name: TaskName | None = None,
        file: IO[str] | None = None,
    ) -> None:
        """Make the progress ready; `task_name` says what tasks are called, if several."""
        self._directory = directory
        self._name = name
        self.metrics = Metrics(task_name)
        self.gauges: Callable[[], Mapping[str, float]] = lambda: {}
        """What else a step's row is to hold, asked when it ends; the driver puts its own here."""
        self._failures: set[str] = set()
        """The kinds of failures that were told."""
        self._failed_in_a_row = 0
        self._idle: list[float] = []
        """The success of the steps in a row that could teach nothing."""
        self._has_skipped = False
        self._log: EventLog | None = None
        self._trackers: tuple[Tracker, ...] = ()
        self.progress = Progress(
            self.metrics, steps=steps, title=name, file=sys.stderr if file is None else file
        )

    def open(self, header: LogHeader, *, resume_step: int | None = None) -> None:
        """Open the directory's files; a resumed run drops rows of steps it will make again."""
        self._log = EventLog(self._directory / LOG, header)
        rows = JsonlTracker(self._directory / METRICS, resume_step=resume_step)
        self._trackers = (rows, TensorBoardTracker(self._directory / "tensorboard"))

    def record(self, now: float, event: Event, commands: Sequence[Command]) -> Row | None:
        """Note an event and what followed from it; return the row of a step that ended."""
        if self._log is None:
            raise InvariantError("an event was to be recorded before the recorder was opened")
        self._log.append(now, event, commands)
        row = self.metrics.add(now, event, commands)
        if row is not None:
            row.update(self.gauges())
            self._track(row)
            self.progress.step(row)
            self._watch_signal(row)
        if isinstance(event, TrajectoryFailed):
            self._tell_failure(event.failure)
        elif isinstance(event, TrajectoryFinished):
            self._failed_in_a_row = 0
        self.progress.tick(now)
        return row

    def evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """Note what an evaluation measured, `success_rate` among it."""
        try:
            self._track({"step": step, **{f"eval/{name}": each for name, each in figures.items()}})
        except StorageError as error:  # the last one is not to cost a run its summary
            self.progress.warn(f"the evaluation at step {step} is told, not kept: {error}")
        shown = {name: value for name, value in figures.items() if name != "failed"}
        words = "  ".join(f"{name} {value:.3f}" for name, value in shown.items())
        self.progress.message(f"evaluation at step {step}: {words}", style="bold")

    def has_evaluation(self, step: int) -> bool:
        """Say whether an evaluation of a step was noted, by this run or the one it goes on from."""
        rows = read_rows(self._directory / METRICS)
        return any(row["step"] == step and "eval/success_rate" in row for row in rows)

    def samples(self, steps_done: int, trajectories: Iterable[Trajectory]) -> None:
        """Keep trajectories of the step that begins as readable text, under its number."""
        directory, parts_of = self._directory / "samples", self.metrics.parts
        write_samples(directory, trajectories, step=steps_done + 1, parts_of=parts_of)

    def finish(self, summary: Mapping[str, Json]) -> None:
        """Write the summary and, if the disk takes it, the learning curve."""
        write_summary(self._directory / SUMMARY, summary)
        try:
            rows = read_rows(self._directory / METRICS)
            plot_learning_curve(self._directory / CURVE, rows, title=self._name)
        except UserError as error:
            self.progress.warn(f"there is no learning curve: {error}")

    def close(self) -> None:
        """Write what is left and close every file."""
        self.progress.stop()
        if self._log is not None:
            self._log.close()
        for tracker in self._trackers:
            tracker.close()

    def _tell_failure(self, failure: Failure) -> None:
        """Tell of the first failure of a kind, and of every so many with none that finished."""
        is_counted = failure.kind != "worker"  # as the scheduler counts
        self._failed_in_a_row += is_counted
        if failure.kind not in self._failures:
            self._failures.add(failure.kind)
            self.progress.warn(
                f"an attempt failed and is made again: {failure.kind}: {failure.message} "
                "(others of this kind are counted, not told)"
            )
        elif is_counted and self._failed_in_a_row % _TOLD_EVERY == 0:
            self.progress.warn(
                f"{self._failed_in_a_row} attempts in a row failed, the last: {failure.kind}: "
                f"{failure.message} (retry.give_up_after says when the run gives up)"
            )

    def _watch_signal(self, row: Row) -> None:
        """Say once that nothing can be learned, and once that updates are left out."""
        if row.get("trainer/skipped") and not self._has_skipped:
            self._has_skipped = True
            self.progress.warn(
                f"step {row['step']:g}: {row['trainer/skipped']:g} updates were left out because "
                "their loss or gradient was not a finite number (others are counted as "
                "trainer/skipped, not told). If that goes on, lower training.learning_rate"
            )
        success = row.get("success_rate", 0.0)
        self._idle = [*self._idle, success] if row.get("trainer/no_signal") else []
        if len(self._idle) == _IDLE_STEPS:
            nothing = (
                f"the last {_IDLE_STEPS} steps taught nothing: all attempts of each group got the "
                f"same reward (the last mean is {row['reward_mean']:.3f})"
            )
            if sum(self._idle) / _IDLE_STEPS >= _SOLVED:
                self.progress.message(f"{nothing}; nearly all succeed: there is little to learn")
            else:
                self.progress.warn(
                    f"{nothing}. If that goes on, look at samples/, then at the task's difficulty, "
                    "the model's start (model.warm_start) or batching.group_size"
                )

    def _track(self, row: Row) -> None:
        for tracker in self._trackers:
            tracker.add(row)
