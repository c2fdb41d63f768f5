"""Imitation: a policy learns from demonstrations, without rollouts: `run.pipeline = "imitation"`.

    learner.step × run.steps ─► evaluate on held-out tasks ─► checkpoint ─► summary

The run's directory is that of any other run: config, rows of metrics, checkpoints, summary and
curve, so `rollart eval`, `--resume` and a later run that starts from it (`model.path`) work alike.
The kind of policy brings the learner (`PolicyRuntime.learner`). Evaluations are played by the same
environments and players as in training with rewards, on tasks that no demonstration is of.
"""

import asyncio
import gc
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rollart.atomic_files import write_file, write_summary
from rollart.checkpoints.resume import read_checkpoint
from rollart.checkpoints.save import Saved, set_aside_later, write_checkpoint
from rollart.clock import SystemClock
from rollart.config import Config, dump_toml
from rollart.config.checks import open_policy
from rollart.errors import ConfigError, StorageError, UserError, printable
from rollart.observe.metrics import Row
from rollart.observe.plots import plot_loss_curve
from rollart.observe.recorder import CURVE, describe_evaluation
from rollart.observe.run_directory import (
    CONFIG,
    METRICS,
    SUMMARY,
    DirectoryLock,
    claim_directory,
    lock_directory,
)
from rollart.observe.trackers import JsonlTracker, TensorBoardTracker, read_rows
from rollart.pipelines.evaluation import play_held_out
from rollart.pipelines.run_record import checkpoint_directory, is_own
from rollart.rollout.tasks import run as run_to_end
from rollart.training_ports import Learner
from rollart.types import Json

_ROWS = 200
"""About how many rows of metrics a run writes."""
_LINES = 20
"""About how many lines of progress it shows."""


@dataclass(kw_only=True)
class ImitationRun:
    """One run of imitation in this process."""

    config: Config
    directory: Path
    learner: Learner
    step: int = 0
    spent_s: float = 0.0
    """Seconds spent before this process resumed the run."""
    interrupts: int = 0
    exit_code: int = 0
    rows: tuple[Any, ...] = ()
    clock: SystemClock = field(default_factory=SystemClock)
    _end_evaluation: Callable[[], object] | None = None
    """Ends the evaluation that is being played, from any thread."""

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Stop after the step being made, with a checkpoint; end an evaluation at once."""
        self.interrupts += 1
        self.exit_code = 128 + number
        if (end := self._end_evaluation) is not None:
            with suppress(RuntimeError):  # its event loop was closed meanwhile
                end()

    def run(self) -> dict[str, Json]:
        """Learn, evaluate and save; return the summary."""
        run = self.config.run
        steps, every = run.steps, run.evaluate_every
        means, was_finished = _Means(), self.step >= steps
        figures: Mapping[str, Json] | None = None
        while self.step < steps and not self.interrupts:
            means.add(self.learner.step())
            self.step += 1
            is_last = self.step == steps
            if self.step % max(1, steps // _ROWS) == 0 or is_last:
                self._track(means.take())
            if self.step % max(1, steps // _LINES) == 0 or is_last:
                self._say(means.last)
            if is_last:  # before the evaluation, which may fail
                self._save()
            elif run.checkpoint_every and self.step % run.checkpoint_every == 0:
                self._save_or_warn()
            if is_last or (every and self.step % every == 0):
                figures = self._evaluate()
        if self.interrupts:
            self._save()
        elif was_finished:
            figures = self._evaluate()
        if self.step < steps:
            figures = None  # those of an earlier step are in the metrics
        return {
            "name": run.name,
            "pipeline": run.pipeline,
            "steps": self.step,
            "interrupted": bool(self.interrupts),
            "success_before": None,
            "success_after": None if figures is None else figures.get("success_rate"),
            "after": None if figures is None else dict(figures),
            "seconds": round(self.spent_s + self.clock.now(), 3),
        }

    def _evaluate(self) -> Mapping[str, Json] | None:
        """Play held-out episodes; what fails there does not end the run."""
        try:
            return self._play()
        except KeyboardInterrupt:  # the evaluation's event loop took the signal
            self.interrupt()
        except asyncio.CancelledError:
            if not self.interrupts:
                raise
        except UserError as error:
            say(f"no evaluation at step {self.step}: {error}")
        return None

    def _play(self) -> Mapping[str, Json] | None:
        config = self.config
        if not config.run.evaluate_episodes:
            return None
        with tempfile.TemporaryDirectory(prefix="rollart-imitation-") as name:
            self.learner.save(name)
            figures = run_to_end(self._play_held_out(Path(name)))
        self._track({f"eval/{key}": value for key, value in figures.items()})
        say(f"evaluation at step {self.step}: {describe_evaluation(figures)}")
        return dict(figures)

    async def _play_held_out(self, model: Path) -> dict[str, float]:
        config, loop, task = self.config, asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._end_evaluation = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            count = config.run.evaluate_episodes
            measured = await play_held_out(config, model, config.sampling, count)
            return dict(measured.figures)
        finally:
            self._end_evaluation = None

    def _save_or_warn(self) -> None:
        """Save; a disk that refuses costs this checkpoint alone."""
        try:
            self._save()
        except StorageError as error:
            say(f"the checkpoint failed, the run continues: {error}")

    def _save(self) -> None:
        write_checkpoint(
            checkpoint_directory(self.directory),
            step=self.step,
            keep=self.config.run.keep_checkpoints,
            clock_s=self.spent_s + self.clock.now(),
            save=self.learner.save,
        )

    def _track(self, figures: Mapping[str, float]) -> None:
        for tracker in self.rows:
            tracker.add({"step": self.step, **figures})

    def _say(self, figures: Mapping[str, float]) -> None:
        words = "  ".join(f"{key} {value:.4g}" for key, value in figures.items())
        say(f"step {self.step}/{self.config.run.steps}  {words}")


class _Means:
    """Means of the figures of some steps."""

    def __init__(self) -> None:
        self._taken: list[Mapping[str, float]] = []
        self.last: dict[str, float] = {}

    def add(self, figures: Mapping[str, float]) -> None:
        self._taken.append(figures)

    def take(self) -> dict[str, float]:
        """Return the means and begin again."""
        taken, self._taken = self._taken, []
        names = taken[-1] if taken else {}
        self.last = {
            name: sum(each.get(name, 0.0) for each in taken) / len(taken) for name in names
        }
        return self.last


def say(text: str) -> None:
    """Show a line of progress."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def train(
    config: Config,
    *,
    resume: Path | None = None,
    begun: Callable[[ImitationRun], None] = lambda _: None,
) -> int:
    """Run a config to its end, or resume it from a checkpoint; return the exit code."""
    if config.ray.address:
        fix = "imitation runs in this process: leave it out"
        raise ConfigError("ray.address", config.ray.address, fix)
    with lock_directory(config.run.path) as lock:
        saved = None if resume is None else read_checkpoint(resume)
        policy = open_policy(config)
        learner = policy.learner()
        run = ImitationRun(config=config, directory=config.run.path, learner=learner)
        if saved is not None:
            run.step = learner.load(str(saved.directory))
            run.spent_s = saved.clock_s
        _claim(config, saved, lock)
        begun(run)
        trackers = (
            JsonlTracker(run.directory / METRICS, resume_step=None if saved is None else run.step),
            TensorBoardTracker(run.directory / "tensorboard"),
        )
        run.rows = trackers
        try:
            with _interrupted_by_signals(run):
                summary = run.run()
        finally:
            learner.close()
            for tracker in trackers:
                tracker.close()
            gc.collect()
        _finish(run, summary)
        return run.exit_code


def _claim(config: Config, saved: Saved | None, lock: DirectoryLock) -> None:
    """Take the run's directory; move an earlier run there aside."""
    moved = claim_directory(config.run.path, resumed=None if saved is None else saved.directory)
    if moved is not None:
        lock.relock(moved)
        say(f"the earlier run there was moved to {moved}")
    write_file(config.run.path / CONFIG, dump_toml(config).encode())
    if saved is not None:
        say(f"resuming from {saved.directory}")
        for path in set_aside_later(saved.directory) if is_own(config, saved) else ():
            say(f"a later checkpoint was set aside as {path}")


@contextmanager
def _interrupted_by_signals(run: ImitationRun) -> Generator[None]:
    """Let Ctrl-C and SIGTERM stop the run after its step; a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        if run.interrupts:
            raise KeyboardInterrupt
        say("stopping after this step; Ctrl-C again to stop at once")
        run.interrupt(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(run: ImitationRun, summary: Mapping[str, Json]) -> None:
    write_summary(run.directory / SUMMARY, summary)
    try:
        rows: list[Row] = read_rows(run.directory / METRICS)
        plot_loss_curve(run.directory / CURVE, rows, title=run.config.run.name)
    except UserError as error:
        say(f"the learning curve was not written: {error}")
    say(f"run directory: {run.directory}")
    if run.interrupts:
        say(f"stopped at step {run.step}; resume with: rollart train --resume {run.directory}")
