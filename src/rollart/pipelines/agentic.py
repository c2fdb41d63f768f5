"""One training run from a config: what is checked before it, its parts, and its summary.

    trainer ranks ∥ engines ─► evaluate ─► Controller.run ─► evaluate ─► summary

Everything a run leaves is in its directory. Ctrl-C, or SIGTERM, asks the scheduler to finish, with
a checkpoint; a second one ends the run at once.
"""

import asyncio
import contextlib
import gc
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

from rollart.checkpoints.resume import check_fits_checkpoint, damaged_error, read_checkpoint
from rollart.checkpoints.save import Checkpointer, Saved, checkpoints, save_and_raise, told_first
from rollart.clock import SystemClock
from rollart.cluster.deployment import Deployment, make_buffer, make_scheduler, open_embedded
from rollart.config import Config
from rollart.config.checks import check_places, open_policy
from rollart.control.scheduler import Scheduler
from rollart.errors import DamagedError, StorageError, UserError
from rollart.events import Event, StepFinished
from rollart.inference.driver import EngineDriver
from rollart.observe.accounting import Accounting
from rollart.observe.recorder import Recorder
from rollart.observe.run_directory import DirectoryLock, lock_directory
from rollart.pipelines.evaluation import Evaluations
from rollart.pipelines.rewards import Rewards, open_rewards
from rollart.pipelines.run_record import (
    checkpoint_directory,
    is_own,
    make_recorder,
    open_record,
)
from rollart.pipelines.start_model import START, check_devices
from rollart.pipelines.task_setups import make_setups
from rollart.rollout.controller import Controller, Parts
from rollart.rollout.env_manager import Setup
from rollart.rollout.env_threads import SHARED
from rollart.rollout.tasks import run as run_to_end
from rollart.rollout.tasks import watch_stalls
from rollart.training.guard import EngineSampling, Guard
from rollart.training_ports import PolicyRuntime, RemoteTrainer
from rollart.types import EngineId, Json, Trajectory, Version

_RUN_ID = "run_id"
"""The note of a checkpoint that holds the run's id."""


@dataclass(kw_only=True)
class TrainingRun:
    """One training run in this process."""

    config: Config
    directory: Path
    setups: Mapping[str, Setup]
    recorder: Recorder
    saved: Saved | None
    policy: PolicyRuntime
    model: Path
    spending: Accounting
    notes: dict[str, Json] = field(default_factory=dict[str, Json])
    controller: Controller | None = None
    evaluations: Evaluations | None = None
    warned: set[str] = field(default_factory=set[str])
    """What the guard has warned of."""
    is_saving: bool = False
    """Whether what was trained is being saved: a first signal does not end that."""
    interrupts: int = 0
    exit_code: int = 0
    interrupt: Callable[[], object] = lambda: None
    """Does what Ctrl-C does, from any thread, once the run has begun."""

    async def run(self) -> int:
        """Train and evaluate; return the exit code."""
        saved = self.saved
        timer = SystemClock()
        start = self.model if saved is None else saved.directory
        version = Version(0 if saved is None else saved.scheduler["version"])
        main = cast("asyncio.Task[int]", asyncio.current_task())
        loop = asyncio.get_running_loop()
        self.interrupt = lambda: loop.call_soon_threadsafe(self._interrupt, main, signal.SIGINT)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._interrupt, main, number)
        async with AsyncExitStack() as stack:
            say = self.recorder.progress.message
            warn = self.recorder.progress.warn
            stack.callback(SHARED.listen(warn))
            opening = open_rewards(self.config, directory=self.directory, say=say, warn=warn)
            rewards = await stack.enter_async_context(opening)
            self._say_where()
            if saved is None:
                open_record(self.config, self.recorder, saved)
            deployment = await stack.enter_async_context(self._open_deployment(start, version))
            if saved is not None:
                await (await deployment.trainer()).load(str(saved.directory))
                open_record(self.config, self.recorder, saved)
            self.spending.note("start", timer.now())
            evaluator = deployment.make_evaluator(self.setups)
            stack.push_async_callback(evaluator.close)
            self.evaluations = evaluations = Evaluations(
                self.config,
                evaluator,
                recorder=self.recorder,
                spending=self.spending,
                engines=deployment.infos,
                generators=deployment.generators,
            )
            self.notes = {**({} if saved is None else saved.notes), **self.notes}
            self.notes["temperature"] = self.config.sampling.temperature
            self.notes["model"] = self.config.model.path
            self.notes[START] = str(self.model.absolute())
            if "before" not in self.notes:
                self.notes["before"] = await evaluations.run(version)
            await evaluations.go_on(version)
            timer = SystemClock()
            trainer = await deployment.trainer()
            self.spending.note("start", timer.now())
            return await self._train(deployment, trainer, evaluations, rewards)

    def _say_where(self) -> None:
        """Say what is being started where that takes a while."""
        ranks, address = self.config.training.ranks, self.config.ray.address
        if address or ranks > 1:
            trainer = "the trainer" if ranks == 1 else f"{ranks} training ranks"
            where = f" on Ray ({address})" if address else ""
            self.recorder.progress.message(f"starting engines and {trainer}{where}")

    def _open_deployment(
        self, start: Path, version: Version
    ) -> AbstractAsyncContextManager[Deployment]:
        """Open the place the config names: this machine, or a cluster."""
        run = self._find_id()
        self.notes[_RUN_ID] = run
        if not self.config.ray.address:
            return open_embedded(
                self.config, model=self.model, start=start, version=version, run=run
            )
        from rollart.cluster.ray_deployment import open_ray  # noqa: PLC0415 loads ray

        return open_ray(
            self.config,
            model=self.model,
            start=start,
            version=version,
            directory=self.directory,
            warn=self.recorder.progress.warn,
            run=run,
        )

    def _find_id(self) -> str:
        """Return the run's id: that of its checkpoint, unless another directory is used."""
        if self.saved is not None and is_own(self.config, self.saved):
            known = self.saved.notes.get(_RUN_ID)
            if isinstance(known, str):
                return known
        return f"{self.config.run.name}-{token_hex(4)}"

    async def _train(
        self,
        deployment: Deployment,
        trainer: RemoteTrainer,
        evaluations: Evaluations,
        rewards: Rewards,
    ) -> int:
        config, saved = self.config, self.saved
        scheduler = make_scheduler(config, saved)
        clock = SystemClock(0.0 if saved is None else saved.clock_s)
        buffer = make_buffer(scheduler, saved)
        checkpointer = Checkpointer(
            checkpoint_directory(self.directory),
            every=config.run.checkpoint_every,
            keep=config.run.keep_checkpoints,
            trainer=trainer,
            buffer=buffer,
            now=clock.now,
            notes=lambda: {**self.notes, "spent": self.spending.total()},
            log=self.recorder,
        )
        self.controller = controller = Controller(
            scheduler, clock=clock, observers=[self.recorder.record]
        )
        self.recorder.progress.waiting_for = scheduler.waiting_for
        self.recorder.progress.in_flight = partial(_in_flight, deployment)
        self.recorder.gauges = rewards.gauges
        parts = Parts(
            worker=await deployment.make_rollout(self.setups, controller=controller, buffer=buffer),
            generators=deployment.generators,
            trainer=trainer,
            buffer=buffer,
            encode=self.policy.encode,
            score=rewards.score,
            on_train=partial(self._sample, scheduler),
            before_event=partial(evaluations.before_event, scheduler),
            after_event=partial(self._after_event, scheduler, checkpointer, evaluations),
            lose_engine=deployment.lose_engine,
        )
        failure = await self._drive(controller, parts, deployment)
        self.is_saving = True
        if failure is not None:
            await save_and_raise(failure, controller, checkpointer, self.directory)
        unsaved = await self._save_last(checkpointer, scheduler)
        self.is_saving = False
        with told_first(unsaved, self.directory):
            after = None if self.interrupts else await evaluations.run_last(scheduler.optimizer)
            figures: dict[str, Json] = {
                "engines": {
                    id_: dict(counters) for id_, counters in (await deployment.stats()).items()
                },
                "rewards": rewards.summary(self.recorder.metrics.scores.failures),
            }
            self._finish(scheduler, figures, after)
        return self.exit_code

    async def _drive(
        self, controller: Controller, parts: Parts, deployment: Deployment
    ) -> UserError | None:
        """Run the controller to its end; return the error it ended with, if any."""
        gc.collect()
        gc.freeze()  # what start-up made lives as long as the run: not worth looking at again
        self.recorder.progress.start()
        self.spending.begin_training()
        stalls = asyncio.create_task(watch_stalls(self.recorder.progress.warn))
        failure = None
        try:
            await controller.run(
                parts, engines=deployment.infos, slots=self.config.run.environments
            )
        except UserError as error:
            failure = error
        finally:
            stalls.cancel()
            self.controller = None
            self.spending.end_training()
            self.recorder.progress.stop()
        return failure

    async def _save_last(
        self, checkpointer: Checkpointer, scheduler: Scheduler
    ) -> StorageError | None:
        """Save the last checkpoint; return the error of a disk that refuses it."""
        try:
            if scheduler.ending is not None and not scheduler.training:
                await checkpointer.save_last(scheduler)
        except StorageError as error:
            return error
        return None

    def _sample(self, scheduler: Scheduler, groups: Sequence[Sequence[Trajectory]]) -> None:
        members = [member for group in groups for member in group]
        count = self.config.run.samples
        if count:
            spread = members[:: max(1, len(members) // count)][:count]
            try:
                self.recorder.samples(scheduler.optimizer, spread)
            except StorageError as error:  # no step is worth less for want of a sample
                self.recorder.progress.warn(f"no samples of this step: {error}")

    def _after_event(
        self,
        scheduler: Scheduler,
        checkpointer: Checkpointer,
        evaluations: Evaluations,
        event: Event,
        tasks: asyncio.TaskGroup,
    ) -> None:
        if isinstance(event, StepFinished):
            self._warn(event.metrics)
            checkpointer.begin(scheduler, tasks)
        evaluations.after_event(scheduler, event, tasks)

    def _warn(self, metrics: Mapping[str, float]) -> None:
        """Print what the trainer's guard found where it does not stop the run; once each."""
        if metrics.get("guard_exceeded") or metrics.get("updates_lost"):
            described = cast("dict[str, Any]", self.policy.trainer_options()["engine"])
            guard = Guard(self.config.training, EngineSampling(**described))
            for kind, text in guard.warnings_of(metrics).items():
                if kind not in self.warned:
                    self.warned.add(kind)
                    self.recorder.progress.warn(text)

    def _finish(
        self,
        scheduler: Scheduler,
        figures: Mapping[str, Json],
        after: dict[str, Json] | None,
    ) -> None:
        before = self.notes["before"]
        summary: dict[str, Json] = {
            "name": self.config.run.name,
            "mode": self.config.run.mode,
            "steps": int(scheduler.optimizer),
            "interrupted": bool(self.interrupts),
            "success_before": _success(before),
            "success_after": _success(after),
            "before": before,
            "after": after,
            **self.spending.total(),
            "resumed_at": None if self.saved is None else self.saved.scheduler["version"],
            **figures,
        }
        self.recorder.finish(summary)
        self.recorder.progress.message(f"run directory: {self.directory}")
        if self.interrupts:
            self.recorder.progress.message(
                f"stopped at step {scheduler.optimizer}; resume with: "
                f"rollart train --resume {self.directory}",
                style="bold",
            )

    def _interrupt(self, main: "asyncio.Task[int]", number: signal.Signals) -> None:
        self.interrupts += 1
        self.exit_code = 128 + number
        was_evaluated = self.evaluations is not None and self.evaluations.interrupt()
        is_orderly = self.controller is not None or was_evaluated or self.is_saving
        if self.interrupts == 1 and is_orderly:
            self.recorder.progress.message(
                "stopping, a checkpoint is written; press Ctrl-C again to stop at once"
            )
            if self.controller is not None:
                self.controller.stop()
        else:
            self.recorder.progress.message("stopping at once")
            main.cancel()


def _in_flight(deployment: Deployment) -> dict[EngineId, int]:
    """Return the requests of the engines of this process; others count their own."""
    return {
        id_: each.in_flight
        for id_, each in list(deployment.generators.items())  # asked by the thread that draws
        if isinstance(each, EngineDriver)
    }


def _success(figures: Json) -> Json:
    return figures.get("success_rate") if isinstance(figures, dict) else None


def train(
    config: Config,
    *,
    resume: Path | None = None,
    begun: Callable[[TrainingRun], None] = lambda _: None,
) -> int:
    """Run a config to its end, or resume from a checkpoint; return the exit code.

    `begun` is given the run before its first step, so that another thread can interrupt it.
    """
    with lock_directory(config.run.path) as lock:
        return _train(config, lock=lock, resume=resume, begun=begun)


def _train(
    config: Config,
    *,
    lock: DirectoryLock,
    resume: Path | None,
    begun: Callable[[TrainingRun], None],
) -> int:
    clock = SystemClock()
    saved = None if resume is None else read_checkpoint(resume)
    # What cannot run is said before anything is made, and before an earlier run is moved aside.
    if saved is not None:
        check_fits_checkpoint(config, saved)
        make_scheduler(config, saved)
    check_places(config)
    if config.ray.address:
        from rollart.cluster.ray_session import check_joinable  # noqa: PLC0415 loads ray

        check_joinable(config.ray.address)
    check_devices(config)
    setups = make_setups(config, config.sampling)
    say = partial(print, file=sys.stderr, flush=True)
    policy = open_policy(config)
    is_new = saved is None
    model = policy.prepare(say) if is_new else policy.find(saved.directory, saved.notes, say)
    policy.check(model)
    prepared_s = clock.now()
    recorder = make_recorder(config, saved, lock=lock, unit=policy.unit)
    spending = Accounting(recorder.metrics.ledger)
    spending.note("model", prepared_s)
    if saved is not None and "spent" in saved.notes:
        spending.go_on(cast("Mapping[str, Any]", saved.notes["spent"]))
    run = TrainingRun(
        config=config,
        directory=config.run.path,
        setups=setups,
        recorder=recorder,
        saved=saved,
        policy=policy,
        model=model,
        spending=spending,
    )
    begun(run)
    try:
        code = run_to_end(run.run())
    except asyncio.CancelledError:
        if not run.interrupts:  # no signal: an error, not an end that anyone asked for
            raise
        left = checkpoints(checkpoint_directory(run.directory))
        last = left[-1] if left else "none"
        recorder.progress.message(f"stopped at once; last checkpoint: {last}", style="bold")
        code = run.exit_code
    except BaseException as error:
        with contextlib.suppress(StorageError):  # a full disk was reported already
            recorder.close()
        if isinstance(error, DamagedError) and saved is not None:
            raise damaged_error(saved.directory, str(error)) from error
        raise
    recorder.close()
    return code
