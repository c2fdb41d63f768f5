"""The recorder: the one object a driver reports to; it writes all files of a run's directory.

Among them are samples of trajectories, each a file of readable text. The driver calls
`record` once per event, in order, so the log, the metrics and the display agree. Before `open` no
file is touched, so a run that cannot resume leaves its directory unchanged.
"""

import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, assert_never

from rollart.atomic_files import write_summary
from rollart.errors import InvariantError, StorageError, UserError, printable
from rollart.events import Command, Event, TrajectoryFailed, TrajectoryFinished
from rollart.observe.log import EventLog, LogHeader
from rollart.observe.metrics import Metrics, Row, TaskName
from rollart.observe.plots import plot_learning_curve
from rollart.observe.progress import Progress
from rollart.observe.run_directory import LOG, METRICS, SUMMARY
from rollart.observe.trackers import JsonlTracker, TensorBoardTracker, Tracker, read_rows
from rollart.types import ArraySteps, Failure, Json, Payload, TokenTurns, Trajectory, TrajectoryId

_INDENT = "    "
Parts = Mapping[str, float]


def render_trajectory(trajectory: Trajectory, parts: Parts | None = None) -> str:
    """Return a trajectory as text: observation, action and reward of each turn."""
    task = trajectory.task
    unit = "tokens" if isinstance(trajectory.payload, TokenTurns) else "steps"
    outcome = "succeeded" if trajectory.success else "did not succeed"
    head = (
        f"trajectory {trajectory.id} of group {trajectory.group}: {outcome}\n"
        f"task {task.id} ({task.env}, seed {task.seed})  reward {trajectory.reward:g}  "
        f"stop {trajectory.stop}  {len(trajectory.payload)} turns  "
        f"{trajectory.cost} {unit}  {_versions(trajectory)}"
    )
    if parts:
        head += "\nreward parts: " + "  ".join(f"{name} {each:g}" for name, each in parts.items())
    return "\n\n".join([head, *_turns(trajectory.payload)]) + "\n"


def _turns(payload: Payload) -> list[str]:
    match payload:
        case TokenTurns(turns=turns):
            return [
                f"turn {number}\n{textwrap.indent(printable(turn.observation), _INDENT)}\n"
                f"> {turn.action!r}   reward {turn.reward:g}, {len(turn.tokens)} tokens"
                for number, turn in enumerate(turns, start=1)
            ]
        case ArraySteps(rewards=rewards):
            return [f"step {n}   reward {reward:g}" for n, reward in enumerate(rewards, start=1)]
        case _:
            assert_never(payload)


def write_samples(
    directory: Path,
    trajectories: Iterable[Trajectory],
    *,
    step: int,
    parts_of: Callable[[TrajectoryId], Parts] | None = None,
) -> tuple[Path, ...]:
    """Write trajectories of one step as `step-000012-3456.txt`; return the files."""
    paths: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for trajectory in trajectories:
            path = directory / f"step-{step:06d}-{trajectory.id}.txt"
            parts = None if parts_of is None else parts_of(trajectory.id)
            path.write_text(render_trajectory(trajectory, parts), encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise StorageError(f"{directory}: samples cannot be written: {error}") from error
    return tuple(paths)


def _versions(trajectory: Trajectory) -> str:
    payload = trajectory.payload
    versions = (
        [version for turn in payload.turns for version in turn.versions]
        if isinstance(payload, TokenTurns)
        else payload.versions
    )
    if not versions:
        return "no tokens"
    low, high = min(versions), max(versions)
    return f"weights {low}" if low == high else f"weights {low} to {high}"


CURVE = "learning_curve.png"
_IDLE_STEPS = 10
"""Steps in a row without a signal before a warning; a few are normal when most attempts succeed."""
_SOLVED = 0.8
"""Mean success of those steps above which the lack of a signal is no problem."""
_WARNED_EVERY = 16
"""Failures in a row between two warnings."""


class Recorder:
    """Writes a run's directory and shows its progress."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        steps: int,
        task_name: TaskName | None = None,
        unit: str = "tokens",
        file: IO[str] | None = None,
    ) -> None:
        """Prepare the display; `task_name` returns the names of tasks, if there are several.

        `unit` names what the cost of a trajectory counts; the keys of rows say tokens for all.
        """
        self._directory = directory
        self._name = name
        self._unit = unit
        self.metrics = Metrics(task_name)
        self.gauges: Callable[[], Mapping[str, float]] = lambda: {}
        """Returns further values for a step's row, called when it ends; set by the driver."""
        self._failures: set[str] = set()
        """Kinds of failures that were already reported."""
        self._failed_in_a_row = 0
        self._selections: set[str] = set()
        """Differences between trained and played attempts that were already reported."""
        self._idle: list[float] = []
        """Success rates of the latest steps in a row that had no signal."""
        self._has_skipped = False
        self._log: EventLog | None = None
        self._rows: JsonlTracker | None = None
        self._trackers: tuple[Tracker, ...] = ()
        self.progress = Progress(
            self.metrics,
            steps=steps,
            title=name,
            unit=unit,
            file=sys.stderr if file is None else file,
        )

    def open(self, header: LogHeader, *, resume_step: int | None = None) -> None:
        """Open the directory's files; a resumed run drops rows of steps it will repeat."""
        warn = self.warn
        self._log = EventLog(self._directory / LOG, header, warn=warn)
        self._rows = JsonlTracker(self._directory / METRICS, resume_step=resume_step, warn=warn)
        board = TensorBoardTracker(self._directory / "tensorboard", warn=warn)
        self._trackers = (self._rows, board)

    def flush(self) -> None:
        """Hand what is recorded to the operating system."""
        if self._log is not None:
            self._log.flush()

    def sync(self) -> None:
        """Have what was flushed on the disk; may be called from another thread."""
        if self._log is not None and self._rows is not None:
            self._log.sync()
            self._rows.sync()

    def warn(self, text: str) -> None:
        """Print a warning that stays."""
        self.progress.warn(text)

    def record(self, now: float, event: Event, commands: Sequence[Command]) -> Row | None:
        """Record an event and its commands; return the row of a step that ended."""
        if self._log is None:
            raise InvariantError("record was called before open")
        self._log.append(now, event, commands)
        row = self.metrics.add(now, event, commands)
        if row is not None:
            row.update(self.gauges())
            self._track(row)
            self.progress.step(row)
            self._watch_signal(row)
            self._watch_selection()
        if isinstance(event, TrajectoryFailed):
            self._report_failure(event.failure)
        elif isinstance(event, TrajectoryFinished):
            self._failed_in_a_row = 0
        self.progress.tick(now)
        return row

    def evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """Record an evaluation's figures, which include `success_rate`."""
        try:
            self._track({"step": step, **{f"eval/{name}": each for name, each in figures.items()}})
        except StorageError as error:  # a full disk must not cost the run its summary
            self.progress.warn(f"the evaluation at step {step} was not saved: {error}")
        shown = {name: value for name, value in figures.items() if name != "failed"}
        words = describe_evaluation(shown)
        self.progress.message(f"evaluation at step {step}: {words}", style="bold")

    def has_evaluation(self, step: int) -> bool:
        """Return whether this step was evaluated, now or before a resume."""
        rows = read_rows(self._directory / METRICS)
        return any(row["step"] == step and "eval/success_rate" in row for row in rows)

    def samples(self, steps_done: int, trajectories: Iterable[Trajectory]) -> None:
        """Write trajectories of the step that starts now as readable text."""
        directory, parts_of = self._directory / "samples", self.metrics.parts
        write_samples(directory, trajectories, step=steps_done + 1, parts_of=parts_of)

    def finish(self, summary: Mapping[str, Json]) -> None:
        """Write the summary and, if possible, the learning curve."""
        write_summary(self._directory / SUMMARY, summary)
        try:
            rows = read_rows(self._directory / METRICS)
            place = self._directory / CURVE
            plot_learning_curve(place, rows, title=self._name, unit=self._unit)
        except UserError as error:
            self.progress.warn(f"the learning curve was not written: {error}")

    def close(self) -> None:
        """Stop the display, write buffered data and close all files."""
        self.progress.stop()
        with ExitStack() as closing:  # one that fails does not keep the others open
            for each in (self._log, *self._trackers):
                if each is not None:
                    closing.callback(each.close)

    def _report_failure(self, failure: Failure) -> None:
        """Warn of the first failure of each kind and of many failures in a row."""
        # The scheduler does not count lost workers either when it decides to give up.
        is_counted = failure.kind != "worker"
        self._failed_in_a_row += is_counted
        if failure.kind not in self._failures:
            self._failures.add(failure.kind)
            self.progress.warn(
                f"an attempt failed and is retried: {failure.kind}: {failure.message} "
                "(further failures of this kind are only counted)"
            )
        elif is_counted and self._failed_in_a_row % _WARNED_EVERY == 0:
            self.progress.warn(
                f"{self._failed_in_a_row} attempts in a row failed, the last: {failure.kind}: "
                f"{failure.message} (retry.give_up_after sets when the run gives up)"
            )

    def _watch_signal(self, row: Row) -> None:
        """Warn once when updates are skipped and once when nothing can be learned."""
        if row.get("trainer/skipped") and not self._has_skipped:
            self._has_skipped = True
            self.progress.warn(
                f"step {row['step']:g}: {row['trainer/skipped']:g} updates were skipped because "
                "their loss or gradient was not finite (further ones are only counted, as "
                "trainer/skipped). If this continues, lower training.learning_rate"
            )
        success = row.get("success_rate", 0.0)
        self._idle = [*self._idle, success] if row.get("trainer/no_signal") else []
        if len(self._idle) == _IDLE_STEPS:
            nothing = (
                f"the last {_IDLE_STEPS} steps taught nothing: all attempts of each group got the "
                f"same reward (the last mean is {row['reward_mean']:.3f})"
            )
            if sum(self._idle) / _IDLE_STEPS >= _SOLVED:
                self.progress.message(f"{nothing}; most succeed, so little is left to learn")
            else:
                self.progress.warn(
                    f"{nothing}. If this continues, look at samples/, then at the task's "
                    "difficulty, the start model (model.warm_start) or batching.group_size"
                )

    def _watch_selection(self) -> None:
        """Warn once of each way in which trained attempts differ from played ones."""
        for key, text in self.metrics.selection.warnings().items():
            if key not in self._selections:
                self._selections.add(key)
                self.progress.warn(
                    f"{text}: the schedule decides by outcome which attempts are trained "
                    "(docs/bias.md: staleness.at_bound, redundancy.choice)"
                )

    def _track(self, row: Row) -> None:
        for tracker in self._trackers:
            tracker.add(row)


_COUNTS = ("problems", "held_out", "failed")


def describe_evaluation(figures: Mapping[str, float]) -> str:
    """Return an evaluation's figures as one line, success with its 95 % interval.

    Example:
        >>> describe_evaluation(
        ...     {"success_rate": 0.5, "success_low": 0.4, "success_high": 0.6, "problems": 100.0}
        ... )
        'success_rate 0.500 (0.400 to 0.600)  problems 100'

    """
    words: list[str] = []
    for name, value in figures.items():
        if name.endswith("success_rate"):
            stem = name.removesuffix("rate")
            low, high = figures.get(f"{stem}low"), figures.get(f"{stem}high")
            interval = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
            words.append(f"{name} {value:.3f}{interval}")
        elif name.endswith(_COUNTS):
            words.append(f"{name} {value:.0f}")
        elif not name.endswith(("success_low", "success_high")):
            words.append(f"{name} {value:.3f}")
    return "  ".join(words)
