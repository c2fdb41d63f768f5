"""Checkpoints of a run: trainer, scheduler and buffer, at the same instant.

A checkpoint is begun between two events: the scheduler's snapshot and the finished trajectories it
counts on are taken at once, and the trainer is asked to save before it can be asked to step. The
directory is filled under another name and renamed last, so one that exists is complete. What it
depends on is on the disk before it gets its name: the files of every rank, and the event log up to
its moment. Older checkpoints are pruned only when its name is on the disk as well.

A disk error costs that checkpoint, with a message; the run and its earlier checkpoints stay. The
next try comes after one step, then after two, four and so on, until the usual number of steps. The
last checkpoint of a run is tried for half a minute.

A run that fails is saved once more if the trainer still works. Where that fails too, the message
says so first and names the newest checkpoint.
"""

import asyncio
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar, cast

from rollart.atomic_files import (
    cut_short,
    make_directory,
    recover_directory,
    remove_directory,
    replace_directory,
    sweep,
    sync,
    write_through,
)
from rollart.control.scheduler import Scheduler
from rollart.control.snapshot import SchedulerRecord, buffered, take_snapshot
from rollart.errors import ClusterError, DamagedError, ModelError, StorageError, UserError
from rollart.observe.run_directory import find_holder
from rollart.rollout.buffer import Buffer
from rollart.rollout.controller import Controller
from rollart.serialization.codec import Codec, CodecError, describe_fault, read_object
from rollart.training_ports import RemoteTrainer
from rollart.types import Json, Trajectory

T = TypeVar("T")

FORMAT = 3
"""Raised when a record of a run gains or loses a part."""
STATE = "run.json"
BUFFER = "buffer.jsonl"
PREFIX = "step-"
_DRAFT = ".draft-"
_LAST_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses between the tries of a run's last checkpoint."""
_GRACE_S = 30.0
"""Longest a checkpoint that is cancelled waits for a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint read back."""

    directory: Path
    scheduler: SchedulerRecord
    trajectories: tuple[Trajectory, ...]
    clock_s: float
    notes: dict[str, Json]
    """What the run wants to remember, such as its first evaluation."""


class RunLog(Protocol):
    """What a run records, as far as checkpoints depend on it.

    Example:
        >>> Checkpointer(directory, log=recorder, every=10, keep=2, …)

    """

    def flush(self) -> None:
        """Hand what is recorded to the operating system."""
        ...

    def sync(self) -> None:
        """Have what was flushed on the disk; called in a thread."""
        ...

    def warn(self, text: str) -> None:
        """Print a warning."""
        ...


class Checkpointer:
    """Writes a run's checkpoints."""

    def __init__(
        self,
        directory: Path,
        *,
        every: int,
        keep: int,
        trainer: RemoteTrainer,
        buffer: Buffer,
        now: Callable[[], float],
        notes: Callable[[], dict[str, Json]],
        log: RunLog,
    ) -> None:
        self._log = log
        self._failures = 0
        """Checkpoints in a row that a disk refused."""
        self._retry_at = 0
        """The step after which to try again; 0: the last checkpoint was written."""
        self._is_swept = False
        self._directory = directory
        self._every = every
        self._keep = keep
        self._trainer = trainer
        self._buffer = buffer
        self._now = now
        self._notes = notes

    def begin(self, scheduler: Scheduler, tasks: asyncio.TaskGroup) -> None:
        """Start a checkpoint if one is due after the step just finished."""
        step = scheduler.optimizer
        is_due = self._every and step % self._every == 0
        if is_due or 0 < self._retry_at <= step:
            tasks.create_task(self._write_or_warn(self._capture(scheduler)))

    async def save(self, scheduler: Scheduler) -> Path:
        """Write a checkpoint of this moment and return its directory."""
        return await self._write(self._capture(scheduler))

    async def save_last(self, scheduler: Scheduler) -> Path:
        """Write the last checkpoint of a run, giving a disk that refuses it time to recover."""
        for pause_s in _LAST_PAUSES_S:
            try:
                return await self.save(scheduler)
            except StorageError as error:
                self._log.warn(f"the last checkpoint failed, next try in {pause_s:g} s: {error}")
                await asyncio.sleep(pause_s)
        return await self.save(scheduler)

    def _capture(self, scheduler: Scheduler) -> "_Moment":
        self._log.flush()
        record = take_snapshot(scheduler)
        return _Moment(
            version=record["version"],
            state=_State(
                clock_s=self._now(),
                scheduler=cast("Mapping[str, Json]", record),
                notes=self._notes(),
            ),
            trajectories=tuple(self._buffer.get(id_) for id_ in buffered(record)),
        )

    async def _write(self, moment: "_Moment") -> Path:
        target = self._directory / f"{PREFIX}{moment.version:06d}"
        draft = self._directory / f"{_DRAFT}{target.name}"
        try:
            await _to_its_end(self._prepare)
            await self._trainer.save(str(draft))
            await _to_its_end(partial(moment.write, draft))
            # A resumed run appends to a log that must reach up to here.
            await _to_its_end(self._log.sync)
            await _to_its_end(partial(replace_directory, draft, target))
        except StorageError as error:
            # The trainer knows only where it writes; the user knows the checkpoint by its name.
            raise StorageError(str(error).replace(str(draft), str(target))) from error
        except OSError as error:
            raise StorageError(f"cannot write the checkpoint {target}: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        for old in checkpoints(self._directory)[: -self._keep]:
            await asyncio.to_thread(remove_directory, old)
        self._failures = self._retry_at = 0
        return target

    def _prepare(self) -> None:
        """Create the directory; remove what a run that was killed did not finish."""
        make_directory(self._directory)
        if not self._is_swept:
            self._is_swept = True
            sweep(self._directory, (_DRAFT, f".{_DRAFT}"))

    async def _write_or_warn(self, moment: "_Moment") -> None:
        try:
            await self._write(moment)
        except UserError as error:
            left = checkpoints(self._directory)
            last = left[-1].name if left else "none"
            self._retry_at = moment.version + min(2**self._failures, self._every)
            self._failures += 1
            self._log.warn(
                f"the checkpoint failed, the run continues (last good one: {last}; next try after "
                f"step {self._retry_at}): {error}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """What a checkpoint holds besides the trainer's part."""

    version: int
    state: "_State"
    trajectories: tuple[Trajectory, ...]

    def write(self, directory: Path) -> None:
        lines = [_TRAJECTORY.encode(each) + b"\n" for each in self.trajectories]
        write_through(directory / BUFFER, b"".join(lines))
        write_through(directory / STATE, _STATE.encode(self.state))


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The run's part of a checkpoint, but for its trajectories."""

    format: int = FORMAT
    clock_s: float
    scheduler: Mapping[str, Json]
    notes: Mapping[str, Json]


_STATE = Codec[_State](_State, name="state")
_TRAJECTORY = Codec[Trajectory](Trajectory, name="trajectory")


def write_checkpoint(
    directory: Path, *, step: int, keep: int, clock_s: float, save: Callable[[str], None]
) -> Path:
    """Write a checkpoint of a run without a scheduler; `save` writes the learner's part.

    Example:
        >>> write_checkpoint(Path("runs/reach/checkpoints"), step=500, keep=2, clock_s=31.5,
        ...                  save=learner.save)
        PosixPath('runs/reach/checkpoints/step-000500')

    """
    target = directory / f"{PREFIX}{step:06d}"
    draft = directory / f"{_DRAFT}{target.name}"
    state = _State(clock_s=clock_s, scheduler={"version": step}, notes={})
    try:
        make_directory(directory)
        save(str(draft))
        _Moment(version=step, state=state, trajectories=()).write(draft)
        replace_directory(draft, target)
    except OSError as error:
        raise StorageError(f"cannot write the checkpoint {target}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    for old in checkpoints(directory)[:-keep]:
        remove_directory(old)
    return target


def checkpoints(directory: Path) -> list[Path]:
    """Return the whole checkpoints of a run's checkpoint directory, oldest first."""
    return sorted(path for path in directory.glob(f"{PREFIX}*") if (path / STATE).is_file())


def step_of(checkpoint: Path) -> str:
    """Return the number in a checkpoint's name, also of one that was set aside."""
    return checkpoint.name.rpartition("-")[2]


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint a user means: one itself, or the newest of a run's directory."""
    if (path / STATE).is_file():
        return path
    directory = path / "checkpoints"
    if find_holder(path) is None:  # what a run at work replaces is its own
        for lost in cut_short(directory, PREFIX):
            recover_directory(lost)
    found = checkpoints(directory)
    if found:
        return found[-1]
    if not path.exists():
        raise StorageError(f"{path}: no such directory; name a run or one of its checkpoints")
    raise StorageError(
        f"{path}: holds no checkpoint (looked for checkpoints/{PREFIX}*/{STATE}): the run "
        "ended before anything was saved; start a new one"
    )


def set_aside_later(checkpoint: Path) -> list[Path]:
    """Rename the checkpoints after the one that is resumed; return their new names.

    They belong to a course of the run that is given up: found by number, they would be taken for
    newer than what is written from here on, which would be pruned instead of them.
    """
    aside: list[Path] = []
    for later in checkpoints(checkpoint.parent):
        if step_of(later) > step_of(checkpoint):
            target = later.with_name(f"superseded-{later.name}")
            shutil.rmtree(target, ignore_errors=True)
            aside.append(later.rename(target))
    if aside:
        sync(checkpoint.parent)
    return aside


def load_saved(directory: Path) -> Saved:
    """Read the run's part of a checkpoint; the trainer reads its own."""
    written = _read_part(directory, STATE, lambda: read_object(directory / STATE))
    if written.get("format") != FORMAT:
        raise ModelError(
            f"{directory}: written in format {written.get('format')}, not {FORMAT}, by another "
            "version of rollart: resume with that one, or start from its weights (model.path)"
        )
    state = _read_part(directory, STATE, lambda: _STATE.decode((directory / STATE).read_bytes()))
    if type(state.scheduler.get("version")) is not int:
        why = f"{STATE}: scheduler.version must be an integer"
        raise DamagedError(f"{directory}: not a whole checkpoint: {why}")
    return Saved(
        directory=directory,
        scheduler=cast("SchedulerRecord", state.scheduler),
        trajectories=_read_part(directory, BUFFER, lambda: _read_buffer(directory / BUFFER)),
        clock_s=state.clock_s,
        notes={**state.notes},
    )


def _read_part(directory: Path, name: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (OSError, CodecError) as error:
        fault = str(error).removeprefix(f"{name}: ") if isinstance(error, CodecError) else ""
        why = f"{name}: {fault or describe_fault(error)}"
        raise DamagedError(f"{directory}: not a whole checkpoint: {why}") from error


def _read_buffer(file: Path) -> tuple[Trajectory, ...]:
    return tuple(_TRAJECTORY.decode(line) for line in file.read_bytes().splitlines())


async def _to_its_end(work: Callable[[], None]) -> None:
    """Do work in a thread; cancelled, wait a while for it: nothing else should touch its files."""
    job = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(job)
    except asyncio.CancelledError:
        job.add_done_callback(_look_at)
        await asyncio.wait({job}, timeout=_GRACE_S)
        raise


def _look_at(job: "asyncio.Future[None]") -> None:
    """Take what a job raised that nobody waits for any more."""
    if not job.cancelled():
        job.exception()


_SAVE_S = 300.0
"""Longest the save may take before the run ends without it."""


async def save_and_raise(
    failure: UserError, controller: Controller, checkpointer: Checkpointer, directory: Path
) -> NoReturn:
    """Save a run that failed between two events; raise the failure, with how to resume."""
    step = controller.scheduler.optimizer
    if isinstance(failure, ClusterError) or controller.stepping.is_under_way:
        raise failure
    try:
        async with asyncio.timeout(_SAVE_S):
            kept = await checkpointer.save(controller.scheduler)
    except (UserError, TimeoutError) as error:
        why = str(error) or f"it took more than {_SAVE_S:g} s"
        last = _name_last(directory)
        raise UserError(f"{failure}; step {step} could not be saved ({why}); {last}") from failure
    raise UserError(
        f"{failure}; step {step} is saved in {kept}: fix the cause, then resume with: "
        f"rollart train --resume {directory}"
    ) from failure


@contextmanager
def told_first(unsaved: StorageError | None, directory: Path) -> Generator[None]:
    """Raise, after what follows, that the end of a run is not saved; then what else is not."""
    more = ""
    try:
        yield
    except UserError as error:
        if unsaved is None:
            raise
        more = f"; {error}"
    if unsaved is not None:
        raise StorageError(f"{unsaved}; {_name_last(directory)}{more}") from unsaved


def _name_last(directory: Path) -> str:
    left = checkpoints(directory / "checkpoints")
    return f"the last checkpoint is {left[-1]}" if left else "there is no checkpoint"
