"""Evaluations of a run: when they are due, beside the rollout or between two steps.

Requests that an engine computes in one batch differ in their last bits from the same requests
apart. So a run that promises the same numbers again, on-policy on one machine, is evaluated while
nothing else runs: when every engine holds the new weights and before the scheduler hears of it.
Any other run is evaluated beside its rollout.

Evaluation of a run's newest checkpoint, or of any checkpoint, on held-out episodes. A run directory
may come from elsewhere: code that is inside it is run only if the user trusts it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from rollart.checkpoints.resume import check_model_files
from rollart.checkpoints.save import find_checkpoint
from rollart.cluster.deployment import make_evaluator, open_engines
from rollart.config import Config, add_import_paths, check_names, load_config
from rollart.control.scheduler import Scheduler
from rollart.errors import UserError
from rollart.events import EngineUpdated, Event
from rollart.observe.accounting import Accounting
from rollart.observe.recorder import Recorder
from rollart.pipelines.task_setups import make_setups
from rollart.plugins import distrusting
from rollart.ports import Generator
from rollart.rollout.evaluation import Evaluation, Evaluator, greedy_figures
from rollart.rollout.tasks import end_tasks
from rollart.rollout.tasks import run as run_to_end
from rollart.types import EngineId, EngineInfo, Json, Sampling, Version


class Evaluations:
    """Has the weights of a run judged as it goes."""

    def __init__(
        self,
        config: Config,
        evaluator: Evaluator,
        *,
        recorder: Recorder,
        spending: Accounting,
        engines: tuple[EngineInfo, ...],
        generators: Mapping[EngineId, Generator],
    ) -> None:
        self._episodes = config.run.evaluate_episodes
        self._every = config.run.evaluate_every if self._episodes else 0
        self._plays_greedily = config.run.evaluate_greedy
        self._doubted: set[str] = set()
        self._evaluator = evaluator
        self._recorder = recorder
        self._spending = spending
        self._generators = generators
        mode = config.mode
        self._is_exact = mode.update == "idle" and mode.alpha == 0 and not config.ray.address
        self._held = {engine.id: engine.version for engine in engines if not engine.lent}
        self._begun = 0
        self._running: set[asyncio.Task[dict[str, Json]]] = set()

    async def run(self, version: Version) -> dict[str, Json]:
        """Evaluate what the engines hold."""
        if not self._episodes:
            return {}
        with self._spending.evaluating():
            measured = await self._evaluator.run(self._episodes)
            greedy = await self._play_greedily()
        warn = self._recorder.progress.warn
        if not measured.trajectories:
            warn(
                f"all {self._episodes} episodes of the evaluation at step {version} failed; the "
                f"last: {measured.last_failure}"
            )
            return {"failed": float(measured.failed)}
        figures = {**measured.figures, **greedy}
        self._recorder.evaluation(version, figures)
        for doubt in measured.overlaps:
            if doubt not in self._doubted:
                self._doubted.add(doubt)
                warn(doubt)
        if measured.failed:
            warn(
                f"{measured.failed} of {self._episodes} episodes of that evaluation failed and are "
                f"not in its figures; the last: {measured.last_failure}"
            )
        return dict(figures)

    async def _play_greedily(self) -> dict[str, float]:
        """Return the figures of the same episodes without chance in the policy, if asked for."""
        if not self._plays_greedily:
            return {}
        measured = await self._evaluator.run(self._episodes, is_greedy=True)
        return greedy_figures(measured) if measured.trajectories else {}

    async def go_on(self, version: Version) -> None:
        """Take the schedule up at a step, and make the evaluation of that step if it was not."""
        if self._every:
            self._begun = version // self._every * self._every
            if self._begun == version and not self._recorder.has_evaluation(version):
                await self.run(version)

    async def run_last(self, version: Version) -> dict[str, Json] | None:
        """Evaluate what was trained; None if it is interrupted."""
        task = self._start(version)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await end_tasks([task])
            raise
        return None if task.cancelled() else task.result()

    async def before_event(self, scheduler: Scheduler, event: Event) -> None:
        """Evaluate between two steps, if one is due and the run is to be exact."""
        if not isinstance(event, EngineUpdated) or event.engine not in self._held:
            return
        self._held[event.engine] = event.version
        everywhere = min(self._held.values())
        if self._is_exact and scheduler.ending is None and self._is_due(everywhere):
            for engine in self._held:
                await self._generators[engine].resume()
            await self.run_last(everywhere)

    def after_event(self, scheduler: Scheduler, event: Event, tasks: asyncio.TaskGroup) -> None:
        """Evaluate beside the rollout, if one is due."""
        is_news = isinstance(event, EngineUpdated) and scheduler.ending is None
        if is_news and self._is_due(scheduler.served):
            self._start(scheduler.served, tasks)

    def interrupt(self) -> bool:
        """End what may be ended without ending the run in disorder; say whether there was any."""
        for task in self._running:
            task.cancel()
        return bool(self._running)

    def _is_due(self, version: Version) -> bool:
        # Only when all engines hold them are weights judged.
        if not self._every or version < self._begun + self._every:
            return False
        self._begun = version // self._every * self._every
        return True

    def _start(
        self, version: Version, tasks: asyncio.TaskGroup | None = None
    ) -> "asyncio.Task[dict[str, Json]]":
        task = (tasks or asyncio).create_task(self.run(version))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


def evaluate(
    path: Path,
    overrides: Sequence[str],
    episodes: int | None,
    temperature: float | None,
    *,
    trust: bool = False,
) -> dict[str, Json]:
    """Play held-out episodes with a checkpoint's weights and return the figures.

    `trust`: code inside the run's own directory may be run, if its config names it.
    """
    checkpoint = find_checkpoint(path)
    file = _config_of(path, checkpoint)
    with nullcontext() if trust else distrusting(file.parent):
        config = load_config(file, overrides)
        add_import_paths(config)
        check_names(config, is_trained=False)
        check_model_files(checkpoint)
        sampling = config.sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
        count = config.run.evaluate_episodes if episodes is None else episodes
        measured = run_to_end(play_held_out(config, checkpoint, sampling, count))
    result: dict[str, Json] = {
        "checkpoint": str(checkpoint),
        "episodes": count,
        **measured.figures,
    }
    if measured.doubts:
        result["doubts"] = list(measured.doubts)
    return result


def _config_of(path: Path, checkpoint: Path) -> Path:
    for directory in (path, *checkpoint.parents):
        if (directory / "config.toml").is_file():
            return directory / "config.toml"
    raise UserError(f"{path}: found no config.toml of the run beside or above it")


async def play_held_out(
    config: Config, checkpoint: Path, sampling: Sampling, episodes: int
) -> Evaluation:
    """Play held-out episodes with the weights in a directory."""
    setups = make_setups(config, sampling)
    async with open_engines(config, model=checkpoint, version=Version(0), store=None) as engines:
        evaluator = make_evaluator(config, setups, engines)
        try:
            measured = await evaluator.run(episodes)
        finally:
            await evaluator.close()
    if not measured.trajectories:
        reason = measured.last_failure
        raise UserError(f"all {episodes} episodes failed, nothing was measured; the last: {reason}")
    return measured
